"""The handshake of two endpoints: the ranks' handshake, with addresses in the fields of the ranks.

    rank, peer    the listening ports of the sender and of the party that it calls
    machine       the sender's IP address, 16 bytes (IPv4 as in RFC 4291, section 2.5.5.2)
    run           one value for all endpoints, so a rank that connects here is refused as a member of another run

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
    """The two ends hold different keys, or none."""


def written(address: Address) -> str:
    """The URL of a numeric address."""
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"{SCHEME}{host}:{address[1]}"


def read(address: str) -> Address:
    """The host and port of an address `tcp://HOST:PORT`.

    Raises:
        ValueError: it has another form.
    """
    parts = urlsplit(address)
    if f"{parts.scheme}://" != SCHEME or not parts.hostname or not parts.port:
        raise ValueError(f"no address of an endpoint over TCP (got: {address!r}); write tcp://HOST:PORT")
    return parts.hostname, parts.port


def identity(own: Address, incarnation: int, key: bytes) -> Identity:
    """The identity that an endpoint sends in every hello."""
    ip = ipaddress.ip_address(own[0])
    packed = ip.packed if ip.version == 6 else b"\0" * 10 + b"\xff\xff" + ip.packed
    return Identity(own[1], 1, RUN, incarnation, key, packed)


def party(hello: Hello) -> Party:
    """The party that sent this hello and has proved its key."""
    ip = ipaddress.IPv6Address(hello.machine)
    return Party(written((str(ip.ipv4_mapped or ip), hello.rank)), hello.incarnation)


async def call(address: str, me: Identity) -> tuple[socket.socket, Party]:
    """Connect to the endpoint at an address and complete the handshake; the caller owns the socket.

    Raises:
        Unreachable: no endpoint listens there, or it holds another key; no request was sent.
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
    """Connect to one address and complete the handshake. Raises OSError with the reason if that fails."""
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
