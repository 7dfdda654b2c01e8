"""Non-blocking TCP sockets on the running event loop: listen, accept, connect, read a known number of bytes.

A cancelled wait loses no bytes and leaves no socket open. So each function waits for readiness and then calls the
socket itself: the loop's own `sock_accept` may lose a connection when its caller is cancelled (Python 3.11).
"""

import asyncio
import errno
import fcntl
import ipaddress
import os
import resource
import selectors
import socket
import struct
import sys
import termios
from contextlib import suppress
from typing import NamedTuple

from transports.aio.futures import resolve
from transports.errors import RendezvousError

BACKLOG = 4096
SHORT_OF_FILES_S = 0.05
SELECT_FILES = 1024
SPARE_FILES = 64
CACHED_BUFFER = 1 << 20
WILDCARD = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}

# The time limits of established connections and handshakes, in seconds; docs/transports.md lists them for users.
CONNECT_S = 15.0  # for one attempt to connect; the kernel alone would try for more than two minutes
HANDSHAKE_TIMEOUT_S = 4.0  # for each handshake, at the end that was called
ACK_TIMEOUT_S = 60.0  # without an acknowledgement of sent bytes, or an answer to a probe
CLOSE_S = 10.0  # without progress while a rank closes


class Keepalive(NamedTuple):
    """The kernel's probes of an idle connection: it is lost after idle + interval * probes seconds, 15 by default.

    Args:
        idle: seconds without a byte before the first probe.
        interval: seconds between probes.
        probes: unanswered probes after which the connection is lost.
    """

    idle: int = 5
    interval: int = 2
    probes: int = 5


KEEPALIVE = Keepalive()
TCP_RTO_MAX_MS = 44  # Linux 6.15; Python has no name for it
MAX_PAUSE_MS = 10_000  # between two retransmissions or probes of a full receiver; the default is 2 minutes
_INFO = struct.Struct("=3xB20xI16xI8xI")  # of Linux' tcp_info: probes, unacked, last_data_sent, last_ack_recv

SocketAddress = tuple[str, int]


def is_loopback(host: str) -> bool:
    """Whether a numeric address stays on this machine."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def check_files(world_size: int) -> None:
    """Raise RendezvousError if this process may not open, or its loop not watch, a connection to every rank."""
    max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if world_size + SPARE_FILES > max_files:
        raise RendezvousError(
            f"too few files may be open for a connection to every rank (ranks: {world_size}, open files: {max_files}); "
            f"raise it with: ulimit -n {world_size + 4 * SPARE_FILES}"
        )
    if by_select() and world_size + SPARE_FILES > SELECT_FILES:
        raise RendezvousError(
            f"select(2) watches too few files for a connection to every rank (ranks: {world_size}, "
            f"files: {SELECT_FILES}); run on a loop over epoll"
        )


def by_select() -> bool:
    """Whether the running loop watches its files by select(2)."""
    return isinstance(getattr(asyncio.get_running_loop(), "_selector", None), selectors.SelectSelector)


def system_text(error: OSError) -> str:
    """The system's text for the error, which asyncio replaces by its own; or the resolver's, of a negative number."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)


async def lookup(host: str, port: int) -> list[SocketAddress]:
    """The numeric addresses of a name, IPv4 first; raises OSError for an unknown name."""
    try:
        entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"{host!r} is no name of a host") from error
    entries.sort(key=lambda entry: entry[0] != socket.AF_INET)
    return list(dict.fromkeys((str(entry[4][0]), port) for entry in entries))


def make_nonblocking(sock: socket.socket) -> socket.socket:
    """Make the socket non-blocking for the running loop; raises OSError if the loop cannot watch one more file."""
    if by_select() and sock.fileno() >= SELECT_FILES:
        sock.close()
        raise OSError(errno.EMFILE, f"select(2) watches {SELECT_FILES} files at most; run on a loop over epoll")
    sock.setblocking(False)
    return sock


def family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def address_to_bind(address: SocketAddress) -> SocketAddress:
    """The address to listen at: loopback as it is, else every interface, because the name may be a router's."""
    return address if is_loopback(address[0]) else (WILDCARD[family(address[0])], address[1])


def listen(address: SocketAddress) -> socket.socket:
    """A listening socket at a numeric address (port 0: any free port); raises OSError if it is in use."""
    listener = socket.socket(family(address[0]), socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        return make_nonblocking(listener)
    except BaseException:
        listener.close()
        raise


async def wait_readable(sock: socket.socket) -> None:
    """Wait until the socket has bytes or a connection, or is closed by the peer."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, resolve, readable)
    try:
        await readable
    finally:
        loop.remove_reader(sock)


async def accept(listener: socket.socket) -> socket.socket:
    """Accept the next connection; while no descriptor is free, connections wait in the kernel's queue."""
    while True:
        await wait_readable(listener)
        try:
            return make_nonblocking(listener.accept()[0])
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                await asyncio.sleep(SHORT_OF_FILES_S)
            # else: the caller closed the connection before it was accepted


async def connect_to(address: SocketAddress) -> socket.socket:
    """Connect to a numeric address.

    Raises:
        OSError: refused, unreachable, or no answer within `CONNECT_S`.
    """
    sock = socket.socket(family(address[0]), socket.SOCK_STREAM)
    try:
        make_nonblocking(sock)
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(sock, address)
        if sock.getsockname() == sock.getpeername():  # TCP can connect a free ephemeral port to itself
            raise ConnectionRefusedError("connected to itself")
    except TimeoutError as error:
        sock.close()
        raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from error
    except BaseException:
        sock.close()
        raise
    return sock


async def read_exactly(sock: socket.socket, count: int) -> bytes:
    """Read exactly `count` bytes.

    Raises:
        ConnectionError: the other side closed before all of them came.
    """
    data = bytearray()
    while len(data) < count:
        try:
            part = sock.recv(count - len(data))
        except BlockingIOError:
            await wait_readable(sock)
            continue
        if not part:
            raise ConnectionResetError(f"the peer closed the connection (bytes: {len(data)} of {count})")
        data += part
    return bytes(data)


def set_options(sock: socket.socket, keepalive: Keepalive = KEEPALIVE) -> None:
    """Send small frames at once, and let the kernel break an idle connection with a machine that vanished.

    The kernel probes only idle connections; `seconds_unacknowledged` checks the others. TCP_USER_TIMEOUT would cover
    both, but it overrides the number of keepalive probes, and breaks a connection with a live process that does not
    read.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in zip(("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"), keepalive, strict=True):
        if hasattr(socket, name):  # some systems lack some of them
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if sys.platform == "linux":
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, MAX_PAUSE_MS)


def seconds_unacknowledged(sock: socket.socket) -> float | None:
    """Seconds since the other machine last acknowledged bytes; None while no sent byte or probe waits for an answer.

    To a full receiver, such as a stopped process, the kernel sends a probe or segment at intervals. Its machine answers
    each, so that between two of them nothing waits for an answer. Cost: one system call of about 2 µs.
    """
    if sys.platform != "linux" or sock.family == socket.AF_UNIX:
        return None
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    probes, unacked, sent_ms, acknowledged_ms = _INFO.unpack(info)
    return acknowledged_ms / 1000 if probes or (unacked and sent_ms < acknowledged_ms) else None


def unacknowledged(sock: socket.socket) -> int:
    """Bytes in this kernel that the other end has not acknowledged; 0 if the system does not report it."""
    with suppress(OSError):
        return int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return 0


def limit_buffers(sock: socket.socket) -> None:
    """Limit the kernel's buffers so that the reading core finds the data that another core has just written in cache.

    For two ranks of one machine with a core each (1 MiB: 206 µs, and 350 to 400 µs without this). A network, and ranks
    that share a core, need larger buffers, which the kernel sizes by itself.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CACHED_BUFFER)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CACHED_BUFFER)
