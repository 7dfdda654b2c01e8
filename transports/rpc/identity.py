"""How two endpoints learn each other's addresses: the ranks' handshake, with an address in the place of a rank.

    rank, peer    the ports at which the sender and the party that it wants are listening
    machine       the sender's IP address, 16 bytes (IPv4 as in RFC 4291, section 2.5.5.2)
    run           one for all endpoints; so a rank that connects here is told that it is in the wrong place

So a proof covers both addresses. An address is read from a hello only after its proof.
"""

import ipaddress
import socket
from urllib.parse import urlsplit

from transports.errors import AuthenticationError, RendezvousError, WireError
from transports.rpc.base import SAME_KEY, Party, Unreachable, reason_of
from transports.tcp.join.acceptor import converse
from transports.tcp.join.handshake import Hello, Identity, connecting, digest
from transports.tcp.sockets import SILENCE_S, Address, dial, is_loopback, resolve, told, tune

SCHEME = "tcp://"
RUN = digest("endpoints")


class NoSharedKey(PermissionError):
    """The two ends hold no one key."""


def written(address: Address) -> str:
    """A numeric address as others ask it."""
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{SCHEME}{host}:{address[1]}"


def read(address: str) -> Address:
    """The host and port of an address.

    Raises:
        ValueError: it is none.
    """
    parts = urlsplit(address)
    if f"{parts.scheme}://" != SCHEME or not parts.hostname or not parts.port:
        raise ValueError(f"no address of an endpoint over TCP (got: {address!r}); write tcp://HOST:PORT")
    return parts.hostname, parts.port


def identity(own: Address, incarnation: int, key: bytes) -> Identity:
    """What an endpoint says of itself in every hello."""
    ip = ipaddress.ip_address(own[0])
    packed = ip.packed if ip.version == 6 else b"\0" * 10 + b"\xff\xff" + ip.packed
    return Identity(own[1], 1, RUN, incarnation, key, packed)


def party(hello: Hello) -> Party:
    """Who has proved itself with this hello."""
    ip = ipaddress.IPv6Address(hello.machine)
    return Party(written((str(ip.ipv4_mapped or ip), hello.rank)), hello.incarnation)


async def call(address: str, me: Identity) -> tuple[socket.socket, Party]:
    """Connect to the endpoint at an address, and be admitted; the caller owns the socket.

    Raises:
        Unreachable: nobody is there, or nobody who holds our key; nothing was asked.
    """
    try:
        host, port = read(address)
        found = await resolve(host, port)
        return await _first(found, me)
    except ValueError as error:
        raise Unreachable(address, str(error), sent=False) from error
    except OSError as error:
        raise Unreachable(address, told(error), sent=False, wrong_key=isinstance(error, NoSharedKey)) from error


async def _first(found: list[Address], me: Identity) -> tuple[socket.socket, Party]:
    """Try the addresses of one name in turn."""
    for address in found[:-1]:
        try:
            return await _knock(address, me)
        except OSError:
            continue
    return await _knock(found[-1], me)


async def _knock(address: Address, me: Identity) -> tuple[socket.socket, Party]:
    """Raises OSError with the reason where this end is not let in."""
    if not me.key and not is_loopback(address[0]):
        raise NoSharedKey(f"it is on another machine, and no key is shared; {SAME_KEY}")
    sock = await dial(address)
    try:
        tune(sock)
        return sock, party(await converse(sock, connecting(me, address[1])))
    except BaseException as error:
        sock.close()
        if isinstance(error, AuthenticationError):
            raise NoSharedKey(f"one of the two holds another key, or none; {SAME_KEY}") from error
        if isinstance(error, (WireError, RendezvousError)):
            raise ConnectionRefusedError(f"what listens there is not the endpoint asked: {reason_of(error)}") from error
        if isinstance(error, TimeoutError):
            raise ConnectionRefusedError(f"what listens there keeps silent ({SILENCE_S:g} s)") from error
        raise


def why_turned_away(error: Exception) -> str:
    """The name under which a caller that was not admitted is counted."""
    match error:
        case AuthenticationError():
            return "wrong key"
        case TimeoutError():
            return "silent at the door"
        case OSError():
            return "hung up at the door"
        case RendezvousError():
            return "wanted another party"
    return reason_of(error)
