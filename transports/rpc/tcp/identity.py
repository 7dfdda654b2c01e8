"""The identity of an endpoint: its address, as text and in the hello of its handshake; and connecting to an address.

A hello holds the IP address of its sender, the port where it listens, and the port that it wants to reach, so a proof
covers them. An address is read from a hello only after its proof.
"""

import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from struct import Struct
from urllib.parse import urlsplit

from transports.errors import AuthenticationError, RendezvousError, TransportError, WireError
from transports.rpc.base import Party, Unreachable
from transports.rpc.reasons import reason_of
from transports.stream.acceptor import run_handshake_in_time
from transports.stream.handshake import NONCE_BYTES, VERSION, Hello, Identity, Role, Verdict, check_prefix, connecting
from transports.stream.shared_key import SAME_KEY
from transports.stream.sockets import SocketAddress, connect_to, is_loopback, lookup, set_options, system_text

SCHEME = "tcp://"
MAGIC = b"PPLE"
HELLO = Struct("!4sBB16sHHQ32s")


class NoSharedKey(PermissionError):
    """The two ends hold different keys, or none."""


class SilentListener(ConnectionRefusedError):
    """A process listens at the address, and did not reply to the handshake in time."""


@dataclass(frozen=True, slots=True)
class PartyHello(Hello):
    """An endpoint as it presents itself.

    Args:
        ip: the sender's IP address, 16 bytes (IPv4 as in RFC 4291, section 2.5.5.2).
        port, peer_port: the ports where the sender listens, and where it expects the other end to listen.
        incarnation: as in `Party`.
    """

    role: Role
    ip: bytes
    port: int
    peer_port: int
    incarnation: int
    nonce: bytes

    def pack(self) -> bytes:
        return HELLO.pack(MAGIC, VERSION, self.role, self.ip, self.port, self.peer_port, self.incarnation, self.nonce)

    @property
    def party(self) -> Party:
        """The sender, which must have proved its key."""
        ip = ipaddress.IPv6Address(self.ip)
        return Party(format_address((str(ip.ipv4_mapped or ip), self.port)), self.incarnation)


@dataclass(frozen=True, slots=True)
class PartyIdentity(Identity[PartyHello, int]):
    """The fields that an endpoint sends in every hello, and the key that it proves (empty: none).

    Args:
        host_port: the numeric address at which others reach this endpoint.
    """

    hello_bytes = HELLO.size
    host_port: SocketAddress
    incarnation: int
    shared_key: bytes = field(repr=False)

    def hello(self, role: Role, peer_port: int) -> PartyHello:
        ip = ipaddress.ip_address(self.host_port[0])
        packed = ip.packed if ip.version == 6 else b"\0" * 10 + b"\xff\xff" + ip.packed
        port = self.host_port[1]
        nonce = secrets.token_bytes(NONCE_BYTES)
        return PartyHello(
            role=role, ip=packed, port=port, peer_port=peer_port, incarnation=self.incarnation, nonce=nonce
        )

    def reply(self, hello: PartyHello) -> PartyHello:
        return self.hello(Role.ACCEPTOR, hello.port)

    def parse(self, data: bytes, role: Role) -> PartyHello:
        check_prefix(data, MAGIC, role)
        return PartyHello(role, *HELLO.unpack(data)[3:])

    def verify(self, hello: PartyHello) -> Verdict:
        return Verdict.ACCEPTED if hello.peer_port == self.host_port[1] else Verdict.OTHER_PEER

    def refusal(self, verdict: Verdict, connector: PartyHello, acceptor: PartyHello) -> TransportError:
        if verdict is Verdict.WRONG_KEY:
            return AuthenticationError(f"this end holds another key than {acceptor.party.address}, or none; {SAME_KEY}")
        ports = f"port wanted: {connector.peer_port}, reached: {acceptor.port}"
        return RendezvousError(f"another endpoint answers there ({ports}); check the address")

    def describe(self, hello: PartyHello) -> str:
        return "a caller"


def format_address(host_port: SocketAddress) -> str:
    """The address of the endpoint that listens at a numeric host and a port."""
    host, port = host_port
    return f"{SCHEME}[{host}]:{port}" if ":" in host else f"{SCHEME}{host}:{port}"


def parse_address(address: str) -> SocketAddress:
    """The host and port of an address `tcp://HOST:PORT`.

    Raises:
        ValueError: it has another form.
    """
    parts = urlsplit(address)
    if f"{parts.scheme}://" != SCHEME or not parts.hostname or not parts.port:
        raise ValueError(f"no address of an endpoint over TCP (got: {address!r}); write tcp://HOST:PORT")
    return parts.hostname, parts.port


async def connect(address: str, me: PartyIdentity) -> tuple[socket.socket, Party]:
    """Connect to the endpoint at an address and complete the handshake; the caller owns the socket.

    Raises:
        Unreachable: no endpoint listens there, or it holds another key; no request was sent.
    """
    try:
        return await _connect_to_first(await lookup(*parse_address(address)), me)
    except ValueError as error:
        raise Unreachable(address, str(error), sent=False) from error
    except OSError as error:
        wrong_key, silent = isinstance(error, NoSharedKey), isinstance(error, SilentListener)
        raise Unreachable(address, system_text(error), sent=False, wrong_key=wrong_key, silent=silent) from error


async def _connect_to_first(hosts: list[SocketAddress], me: PartyIdentity) -> tuple[socket.socket, Party]:
    """Connect to the first host of one name that replies. Raises OSError as the last one does."""
    for host_port in hosts[:-1]:
        try:
            return await _connect_to(host_port, me)
        except OSError:
            continue
    return await _connect_to(hosts[-1], me)


async def _connect_to(host_port: SocketAddress, me: PartyIdentity) -> tuple[socket.socket, Party]:
    """Connect to one host and complete the handshake. Raises OSError with the reason if that fails."""
    if not me.shared_key and not is_loopback(host_port[0]):
        raise NoSharedKey(f"it is on another machine, and no key is shared; {SAME_KEY}")
    sock = await connect_to(host_port)
    try:
        set_options(sock)
        return sock, (await run_handshake_in_time(sock, connecting(me, host_port[1]))).party
    except BaseException as error:
        sock.close()
        if isinstance(error, AuthenticationError):
            raise NoSharedKey(f"one of the two holds another key, or none; {SAME_KEY}") from error
        if isinstance(error, (WireError, RendezvousError)):
            raise ConnectionRefusedError(f"another program answers at this address: {reason_of(error)}") from error
        if isinstance(error, TimeoutError):
            raise SilentListener(f"what listens there does not reply ({error})") from error
        raise


def rejection_label(error: Exception) -> str:
    """The name under which a caller that was not admitted is counted."""
    match error:
        case AuthenticationError():
            return "wrong key"
        case TimeoutError():
            return "handshake timed out"
        case OSError():
            return "closed during the handshake"
        case RendezvousError():
            return "wanted another endpoint"
    return reason_of(error)
