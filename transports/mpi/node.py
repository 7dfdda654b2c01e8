"""The other ranks of this node: their doorbells, and the arenas that carry bodies between them.

Both are optional: a rank without a doorbell polls, and a body without shared memory goes over MPI. So the sender does
not check which ranks are on its node.
"""

import os
from array import array
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_

from mpi4py import MPI

from transports.errors import TransportError
from transports.mpi.progress import Doze
from transports.shm.arena import Arena, PeerArena
from transports.shm.doorbell import NAME_BYTES, Doorbell
from transports.shm.memfd import ADDRESS_BYTES
from transports.wire.arrays import Block

CORE_BYTES = 1024  # 8,192 cores, the most that Linux supports


class NodePeers:
    """This rank's doorbell and arena, and those of the other ranks of its node.

    Args:
        woken: called on the loop when a peer has rung.
        nbytes: size of each rank's arena for bodies; the same on all ranks.
    """

    def __init__(self, woken: Callable[[], None], nbytes: int):
        self._doorbell, self._arena, self._nbytes = Doorbell(woken), Arena(nbytes), nbytes
        self._addresses: dict[int, bytes] = {}
        self._windows: dict[int, PeerArena | None] = {}
        self._seen_by: frozenset[int] = frozenset()

    def meet(self, node: MPI.Comm, rank: int) -> bool:
        """Exchange doorbells and arenas with the ranks of the node, which all call this. True if all can be rung."""
        ranks = array("q", _of_all(node, array("q", [rank]).tobytes()))
        addresses = _split(_of_all(node, self._arena.address), ADDRESS_BYTES)
        self._addresses = {peer: it for peer, it in zip(ranks, addresses, strict=True) if peer != rank}
        looks = [self._opens(peer) for peer in ranks]
        rows = _split(_of_all(node, bytes(looks)), node.size)
        self._seen_by = frozenset(peer for peer, row in zip(ranks, rows, strict=True) if row[node.rank])
        names = _split(_of_all(node, self._doorbell.name), NAME_BYTES)
        return self._doorbell.meet(dict(zip(ranks, names, strict=True)))

    def ring(self, peer: int) -> None:
        """Wake this peer if it is on this node and asleep, because a message for it has been sent."""
        window = self._windows.get(peer) or self._window(peer)
        if window is None or window.rouse():
            self._doorbell.ring(peer)

    def rouse(self, peer: int) -> None:
        """As `ring`, before the message is sent; does not wake a peer that computes."""
        window = self._windows.get(peer) or self._window(peer)
        if window is not None and window.dozing == Doze.IDLE:
            self.ring(peer)

    def doze(self, dozing: Doze) -> None:
        """Announce how this rank sleeps, so that peers know whether to ring."""
        self._arena.doze(dozing)

    def put(self, peer: int, blocks: Sequence[Block], head: Callable[[int], bytes]) -> bytes | None:
        """Copy the blocks into memory that the peer can map. Returns the frame that `head(page)` makes.

        Returns: None if there is no such memory; the blocks must then go over MPI.
        Raises: as `head`; the pages are freed then.
        """
        page = self._arena.put(blocks) if peer in self._seen_by else None
        if page is None:
            return None
        try:
            return head(page)
        except TransportError:
            self._arena.take_back(page, blocks)
            raise

    def look(self, peer: int, page: int, nbytes: int) -> memoryview:
        """View the body that the peer stored at this page.

        Raises:
            WireError: no body can be there. OSError: the peer and its memory are gone.
        """
        window = self._window(peer)
        if window is None:
            raise FileNotFoundError(f"rank {peer} shares no memory with this one")
        return window.look(page, nbytes)

    def close(self) -> None:
        """Free everything except the memory of received bodies that arrays still view."""
        self._doorbell.close()
        self._arena.close()
        self._windows, self._addresses, self._seen_by = {}, {}, frozenset()

    def _opens(self, peer: int) -> bool:
        """Whether this rank can map that peer's arena; the mapping is closed again."""
        try:
            return peer in self._addresses and PeerArena(self._addresses[peer], self._nbytes) is not None
        except OSError:
            return False

    def _window(self, peer: int) -> PeerArena | None:
        """The peer's arena, mapped at first use: each mapping is a descriptor, and select(2) is limited to 1,024."""
        if peer not in self._windows and peer in self._addresses:
            try:
                self._windows[peer] = PeerArena(self._addresses[peer], self._nbytes)
            except OSError:
                self._windows[peer] = None
        return self._windows.get(peer)


def nodes_of(world: MPI.Comm, node: MPI.Comm) -> tuple[int, ...]:
    """For each rank of the world, the number of its node (its lowest rank). Collective: all ranks must call this."""
    lowest = array("q", [0])
    node.Allreduce([array("q", [world.rank]), MPI.INT64_T], [lowest, MPI.INT64_T], MPI.MIN)
    return tuple(array("q", _of_all(world, lowest.tobytes())))


def cores_of(node: MPI.Comm) -> int:
    """The number of distinct cores that the node's ranks may run on: a launcher may bind each rank to its own core."""
    mine = 0
    for core in os.sched_getaffinity(0):
        mine |= 1 << core
    masks = _split(_of_all(node, mine.to_bytes(CORE_BYTES, "little")), CORE_BYTES)
    return reduce(or_, (int.from_bytes(mask, "little") for mask in masks)).bit_count()


def _of_all(comm: MPI.Comm, mine: bytes) -> bytes:
    """The bytes of every rank, concatenated in rank order; all have the same length."""
    everyone = bytearray(len(mine) * comm.size)
    comm.Allgather([mine, MPI.BYTE], [everyone, MPI.BYTE])
    return bytes(everyone)


def _split(data: bytes, length: int) -> list[bytes]:
    return [data[at : at + length] for at in range(0, len(data), length)]
