"""An endpoint over TCP: it listens at an address, and keeps one connection with each party.

No frame is read before the party has proved that it holds the key. Invalid input ends its connection and nothing else.
A connection serves both directions. If two parties connect to each other at the same moment, they keep both
connections, and each sends its requests over its own.
"""

import asyncio
import ipaddress
import os
import secrets
import socket

from transports.emulation.options import LinkProfile
from transports.errors import AuthenticationError, RendezvousError
from transports.rpc.base import Party, Unreachable
from transports.rpc.connections import BaseEndpoint
from transports.rpc.reasons import count_reason
from transports.rpc.server import MAX_BYTES_IN_FLIGHT
from transports.rpc.tcp.connection import TcpConnection
from transports.rpc.tcp.identity import (
    SCHEME,
    PartyHello,
    PartyIdentity,
    connect,
    format_address,
    parse_address,
    rejection_label,
)
from transports.rpc.tcp.slow_links import AccessLines, SlowConnection
from transports.stream.acceptor import Acceptor, AcceptorOwner
from transports.stream.handshake import Verdict
from transports.stream.shared_key import SAME_KEY, read_shared_key
from transports.stream.sockets import SocketAddress, address_to_bind, is_loopback, listen, lookup, system_text
from transports.urls import ParsedUrl

USAGE = "write tcp://HOST:PORT, port 0 for any, and ?listen=HOST:PORT where others reach it by another address"


async def open_url(url: ParsedUrl) -> "TcpEndpoint":
    """Open `tcp://HOST:PORT[?listen=HOST:PORT]`; PIPELINED_KEY or PIPELINED_KEY_FILE hold the shared key.

    Raises:
        ValueError: the URL is malformed. Else as `open_at`.
    """
    listening = url.option("listen")
    url.check_all_taken(host=True)
    if not url.host:
        raise ValueError(f"no host to listen at in {url.text!r}; {USAGE}")
    host_port = url.host, url.port or 0
    try:
        bind_address = None if listening is None else parse_address(f"{SCHEME}{listening}")
    except ValueError as error:
        raise ValueError(f"?listen= takes HOST:PORT (got: {listening!r}); {USAGE}") from error
    return await open_at(host_port, read_shared_key(os.environ), url.links, bind_address=bind_address)


async def open_at(
    host_port: SocketAddress,
    shared_key: bytes = b"",
    profile: LinkProfile | None = None,
    max_in_flight: int = MAX_BYTES_IN_FLIGHT,
    bind_address: SocketAddress | None = None,
) -> "TcpEndpoint":
    """Listen at the host and port at which others reach this party.

    Args:
        shared_key: empty: none, and then only loopback is allowed.
        profile: the profile of emulated slow links to all others.
        max_in_flight: bytes of messages that one connection may have in this endpoint's memory, headers included.
        bind_address: the address to listen at, if a router or container forwards `host_port` to it.
    Raises:
        AuthenticationError: the address can be reached from other machines, and there is no key.
        RendezvousError: no such address, or it is in use.
    """
    try:
        host = (await lookup(*host_port))[0][0]
        if is_wildcard(host):
            fact = f"{host} is not an address that others can connect to"
            raise RendezvousError(f"{fact}; name the one by which they reach this machine")
        bind_to = address_to_bind((host, host_port[1])) if bind_address is None else (await lookup(*bind_address))[0]
        if not shared_key and not (is_loopback(bind_to[0]) and is_loopback(host)):
            raise AuthenticationError(f"{host} can be reached from other machines, and no key is shared; {SAME_KEY}")
        listener = listen(bind_to)
    except OSError as error:
        named = host_port if bind_address is None else bind_address
        fact = f"cannot listen there ({system_text(error)}; host: {named[0]}, port: {named[1]})"
        raise RendezvousError(f"{fact}; choose another address") from error
    me = PartyIdentity((host, host_port[1] or listener.getsockname()[1]), secrets.randbits(63), shared_key)
    endpoint = TcpEndpoint(me, listener, profile, max_in_flight)
    await endpoint.listen()
    return endpoint


def is_wildcard(host: str) -> bool:
    """Whether a numeric address means every interface."""
    return ipaddress.ip_address(host.partition("%")[0]).is_unspecified


class TcpEndpoint(BaseEndpoint[TcpConnection], AcceptorOwner[PartyHello]):
    """See `open_at`."""

    def __init__(self, me: PartyIdentity, listener: socket.socket, profile: LinkProfile | None, max_in_flight: int):
        super().__init__(format_address(me.host_port), me.incarnation, max_in_flight)
        self._me = me
        self._profile = profile
        self._access_lines = AccessLines(profile)
        self._acceptor = Acceptor(listener, self._me, self)
        self._calls: dict[asyncio.Task[None], None] = {}
        self._close_task: asyncio.Task[None] | None = None

    async def listen(self) -> None:
        """Admit others from now on."""
        await self._acceptor.__aenter__()

    async def close(self) -> None:
        self.closed = True
        if self._close_task is None:
            self._close_task = asyncio.create_task(self._close())
        await asyncio.shield(self._close_task)

    async def _close(self) -> None:
        for connection in self.connections:
            connection.end("this end was closed")
        for task in self._calls:
            task.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        await self._acceptor.__aexit__()
        await self.handlers.close()

    def open_connection(self, address: str) -> TcpConnection:
        connection = self._connection(address)
        task = asyncio.create_task(self._connect(connection))
        self._calls[task] = None
        task.add_done_callback(self._calls.pop)
        return connection

    async def _connect(self, connection: TcpConnection) -> None:
        try:
            sock, peer = await connect(connection.address, self._me)
        except Unreachable as error:
            return connection.end_for(error)
        except Exception as error:  # a bug here must not leave the requests waiting for ever
            self.handlers.fail(error)
            return connection.end(f"calling it failed ({type(error).__name__})", sent=False)
        self._on_connected(connection, sock, peer)

    def admit(self, hello: PartyHello) -> Verdict:
        return Verdict.ACCEPTED

    async def on_admitted(self, hello: PartyHello, sock: socket.socket) -> None:
        if self.closed:
            return sock.close()
        self._on_connected(self._connection(hello.party.address), sock, hello.party)

    def on_error(self, error: Exception) -> None:
        self.handlers.fail(error)

    def _connection(self, address: str) -> TcpConnection:
        slow = SlowConnection(self.address, self._profile, self._access_lines)
        connection = TcpConnection(self, address, slow.wrap_writer, slow.wrap_session)
        self.connections.add(connection)
        return connection

    def _on_connected(self, connection: TcpConnection, sock: socket.socket, peer: Party) -> None:
        if connection.ended:
            return sock.close()
        self.connections.identify(connection, peer)
        try:
            connection.on_connected(sock, peer)
        except OSError as error:  # the connection broke before its first use
            sock.close()
            connection.end(system_text(error), sent=False)

    def on_rejected(self, error: Exception) -> None:
        count_reason(self.invalid_input, rejection_label(error))
