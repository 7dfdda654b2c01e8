"""Doorbells: how ranks of one machine wake one another. A ring carries no data, and a spurious ring does no harm.

MPI has no event to wait for, so a waiting rank must poll. A doorbell is a Unix datagram socket with an abstract name
(no file to clean up). When a peer rings, the sleeping rank's loop wakes within tens of microseconds, not at its next
poll. /proc/net/unix shows the names to every user of the machine, so other processes can ring too; that costs at most
one poll for each turn of the loop. No MPI here: the caller passes the names.
"""

import asyncio
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress

NAME_BYTES = 32
MAX_RINGS_PER_READ = 64
"""Queued rings read in one callback. Linux queues 10, or 512 under systemd (net.unix.max_dgram_qlen)."""


class Doorbell:
    """The doorbell of this rank, and the names of its peers' doorbells.

    Args:
        on_ring: called on the loop after a peer has rung.

    Attributes:
        name: the name that peers ring, `NAME_BYTES` long; all zeros if the system has no doorbells.
    """

    def __init__(self, on_ring: Callable[[], None]):
        self._on_ring = on_ring
        self._loop = asyncio.get_running_loop()
        self._names: dict[int, bytes] = {}
        self._socket = _bind() if sys.platform == "linux" else None
        self.name = bytes(NAME_BYTES) if self._socket is None else self._socket.getsockname()
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._on_readable)

    def connect(self, names: Mapping[int, bytes]) -> bool:
        """Store the peers' names, which must be bound already. Returns whether this rank can ring all of them.

        A peer in another network namespace (another container) cannot be rung.
        """
        self._names = {peer: name for peer, name in names.items() if self._reaches(name)}
        return len(self._names) == len(names)

    def ring(self, peer: int) -> None:
        """Wake this peer if its doorbell can be reached; a full queue of rings needs no further ring.

        A thread may call this while the loop's thread closes the doorbell.
        """
        bell = self._socket
        name = self._names.get(peer)
        if bell is not None and name is not None:
            with suppress(OSError):  # its queue of rings is full, or the peer is gone, or the bell was closed meanwhile
                bell.sendto(b"", name)

    def close(self) -> None:
        """Close the socket; later rings have no effect."""
        self._names = {}
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    def _reaches(self, name: bytes) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.sendto(b"", name)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def _on_readable(self) -> None:
        """Read all queued rings and call `on_ring` once: any user of the machine can ring without end."""
        if self._socket is None:
            return
        with suppress(BlockingIOError):
            for _ in range(MAX_RINGS_PER_READ):
                self._socket.recv(1)
        self._on_ring()


def _bind() -> socket.socket:
    bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    bell.setblocking(False)
    random = secrets.token_hex((NAME_BYTES - len("\0pipelined.")) // 2)
    bell.bind(f"\0pipelined.{random}".ljust(NAME_BYTES, ".").encode())
    return bell
