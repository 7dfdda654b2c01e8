"""A caller at the port of a rank."""

from transports.stream.sockets import connect_to
from transports.tcp.join.rendezvous import handshake_with


async def connect(address, me, peer):
    """Connect to a rank and complete the handshake; returns the socket and the rank's hello."""
    sock = await connect_to(address)
    return sock, await handshake_with(sock, address, me, peer)
