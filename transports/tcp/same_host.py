"""Between ranks of one machine a Unix socket instead of the TCP connection on which they met: the same bytes, sooner.

    lower rank                                  higher rank
    "unix" [name, nonce, users], or nothing →   calls that name, says the nonce there
                                           ←    "unix": whether it got through
    takes the caller that says the nonce

Where it does not get through (other namespaces of networks or users, a machine that bears another's name, a system
without abstract names), the two keep their TCP connection.

The one rule: the name may be known to anybody; who may call is told by the system (the same user) and by the nonce,
which went over a connection that was authenticated.

Measured between two processes, messages of 1 to 16 MiB there and back: 5.5 to 9.4 GB/s, and 2.5 to 5.3 over loopback.
"""

import hmac
import os
import secrets
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from transports.errors import WireError
from transports.nursery import Nursery
from transports.tcp.join.control import read_letter, send_letter
from transports.tcp.sockets import accept, read_exactly, watched

NONCE_BYTES = 32
ROOM_BYTES = 4 << 20
"""What the kernel may hold for the other end: more than a collective's piece, so that of ranks that share a core one
writes it whole before another runs (4 ranks on 2 cores, 16 MiB by `multi_ring`: 28.4 ms where 1 MiB took 31.8)."""
CALLERS = 16
"""Who may wait at a door; one is expected."""
_CREDENTIALS = struct.Struct("3i")  # process, user, group


async def shortcuts(rank: int, met: Mapping[int, socket.socket]) -> dict[int, socket.socket]:
    """The best sockets to these ranks of this machine, all of which call this; those they replace are closed.

    Raises:
        WireError, OSError: a rank sent what does not belong here, or left; the first error of any of them.
    """
    found: dict[int, socket.socket] = {}

    async def improve(peer: int, sock: socket.socket) -> None:
        found[peer] = await (_host(sock) if rank < peer else _guest(sock))

    try:
        async with Nursery() as group:
            for peer, sock in met.items():
                group.create_task(improve(peer, sock))
    except BaseException:
        for sock in found.values():
            sock.close()
        raise
    return found


async def _host(met: socket.socket) -> socket.socket:
    name, nonce = f"\0pipelined-{secrets.token_hex(16)}", secrets.token_bytes(NONCE_BYTES)
    door = open_door(name)
    if door is None:
        await send_letter(met, "unix")
        await read_letter(met, "unix")
        return met
    with door:
        await send_letter(met, "unix", [name, nonce, users()])
        if not await read_letter(met, "unix"):
            return met
        sock = await _admit(door, nonce)
    met.close()
    return _roomy(sock)


async def _guest(met: socket.socket) -> socket.socket:
    sock = call(await read_letter(met, "unix"))
    if sock is None:
        await send_letter(met, "unix", False)
        return met
    try:
        await send_letter(met, "unix", True)
    except BaseException:
        sock.close()
        raise
    met.close()
    return _roomy(sock)


def open_door(name: str) -> socket.socket | None:
    """A socket that listens under this name; None where the system has no such names, or no file to spare."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        door.bind(name)
        door.listen(CALLERS)
        return watched(door)
    except OSError:
        door.close()
        return None


def call(told: Any) -> socket.socket | None:
    """Call whom the letter names, and say its nonce; None where nobody answers.

    Raises:
        WireError: it is no such letter.
    """
    match told:
        case None:
            return None
        case [str(name), bytes(nonce), str(theirs)] if name.startswith("\0") and len(nonce) == NONCE_BYTES:
            if theirs != users():
                return None
        case _:
            raise WireError("a name for a Unix socket that is none; install one release on every rank")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        watched(sock).connect(name)
        if is_own(sock):
            sock.sendall(nonce)
            return sock
    except (OSError, ValueError):
        pass
    sock.close()
    return None


async def _admit(door: socket.socket, nonce: bytes) -> socket.socket:
    """The caller that says the nonce; others are sent away."""
    while True:
        sock = await accept(door)
        try:
            with suppress(ConnectionError):
                if is_own(sock) and hmac.compare_digest(await read_exactly(sock, NONCE_BYTES), nonce):
                    return sock
        except BaseException:
            sock.close()
            raise
        sock.close()


def users() -> str:
    """In which namespace users are numbered here: in another one, the same user has another number."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/user")
    return ""


def _roomy(sock: socket.socket) -> socket.socket:
    """Let more bytes be under way than the few that the system allows by itself, as far as its `wmem_max` goes."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM_BYTES)
    return sock


def is_own(sock: socket.socket) -> bool:
    """Whether the process at the other end is this user's."""
    said = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(said)[1] == os.getuid()
