"""Memory that the ranks of a group on one node share, over MPI: a window for each rank, and barriers.

A rank that waits in a barrier first checks for its peers for some microseconds, because most come at once; then it lets
the loop run between two checks; then it sleeps until a doorbell or the progress engine wakes it. The first rank of the
group gathers whether every rank could map the memory and sends the result to all, so that all ranks decide alike.
"""

import asyncio
import os
from collections.abc import Sequence
from time import perf_counter

from transports.base import EndState, Transport
from transports.event_loop import yield_to_timers
from transports.mpi.all_gather import all_gather
from transports.mpi.node import NodePeers
from transports.mpi.progress import ProgressEngine
from transports.shm.barrier import HEAD, WaitState, Windows
from transports.shm.memfd import ADDRESS_BYTES, MemoryFile

TURN_S = 1e-3
"""The loop gets a turn after at most this many seconds."""
CHECK_S, OVERSUBSCRIBED_CHECK_S = 200e-6, 1e-3
"""Maximum seconds of one check for the others: if this rank has its own core, and if ranks share cores."""
SPIN_S = 2e-3
"""Seconds for which a rank checks at each turn of the loop, before it sleeps."""


class MpiShared:
    """Implements `transports.base.SharedWindows` over MPI.

    Args:
        transport: carries the messages of `ready`.
        ranks: the ranks of the group, all on this node.
        channel: distinguishes this group's messages from those of other groups.
        nbytes: size of each rank's window.
        state: the transport's, with the lost peers.
        progress: polls while this rank sleeps in a barrier; a doorbell wakes it.
        node_peers: rings the ranks that sleep in a barrier.
    """

    def __init__(
        self,
        transport: Transport,
        ranks: Sequence[int],
        channel: int,
        nbytes: int,
        *,
        state: EndState,
        progress: ProgressEngine,
        node_peers: NodePeers,
    ):
        self._transport, self._progress = transport, progress
        self._state, self._node_peers, self._oversubscribed = state, node_peers, node_peers.oversubscribed
        self._ranks, self._nbytes = tuple(ranks), nbytes
        self._others = [rank for rank in ranks if rank != transport.rank]
        self._key = ("shared", channel, ",".join(map(str, ranks)))
        self._check_s = OVERSUBSCRIBED_CHECK_S if self._oversubscribed else CHECK_S
        self._due = 0.0
        self.windows: Sequence[memoryview] = ()

    async def ready(self) -> bool:
        lent = self._own_segment()
        try:
            address = bytes(ADDRESS_BYTES) if lent is None else lent.address
            addresses = await self._all_gather("at", address)
            found = self._map_windows(lent, addresses)
            answers = await self._all_gather("found", b"\0" if found is None else b"\1")
        except BaseException:
            found = None  # the error's traceback keeps this frame alive
            raise
        finally:  # all ranks have mapped it, or this rank was cancelled or lost a peer
            if lent is not None:
                lent.close()
        if found is None or b"\0" in answers:
            return False
        self._windows, self.windows = found, found.windows
        return True

    @property
    def epoch(self) -> int:
        return self._windows.epoch

    async def barrier(self) -> None:
        windows = self._windows
        if windows.arrive() is None:
            for at in windows.wake():
                self._node_peers.ring(self._others[at])
        elif windows.spin(self._spin_s, self._oversubscribed) is not None:
            await self._wait()
        if not self._due:
            self._due = perf_counter() + TURN_S
            asyncio.get_running_loop().call_soon(self._on_loop_turn)
        elif perf_counter() > self._due:
            await yield_to_timers()

    async def yield_core(self) -> None:
        if self._oversubscribed:
            os.sched_yield()  # else the kernel preempts this rank for milliseconds at a time
        await yield_to_timers()

    @property
    def _spin_s(self) -> float:
        return 0.0 if self._progress.is_computing else self._check_s

    def _on_loop_turn(self) -> None:
        """The loop has had a turn; the next barrier sets a new deadline."""
        self._due = 0.0

    async def _wait(self) -> None:
        """Check at each turn of the loop for `SPIN_S` seconds, then at each poll of the progress engine."""
        start = perf_counter()
        while True:
            if self._spin_s and perf_counter() - start < SPIN_S:
                await asyncio.sleep(0)
            else:
                await self._sleep()
            if self._windows.spin(self._spin_s, self._oversubscribed) is None:
                return
            self._raise_if_lost()

    async def _sleep(self) -> None:
        """Wait for the progress engine's next poll; a ring triggers it at once."""
        self._windows.sleep(WaitState.DEEP)
        try:
            if self._windows.first_absent() is not None:
                await self._progress.turn()
        finally:
            self._windows.sleep(WaitState.NONE)

    def _raise_if_lost(self) -> None:
        """Raise if a rank that has not come is lost. A rank that came before it was lost does not count."""
        absent = self._windows.first_absent()
        if absent is not None:
            self._state.check_sendable(self._others[absent])

    def _own_segment(self) -> MemoryFile | None:
        try:
            return MemoryFile(HEAD + self._nbytes)
        except OSError:
            return None

    def _map_windows(self, lent: MemoryFile | None, addresses: Sequence[bytes]) -> Windows | None:
        try:
            return None if lent is None else Windows(lent, addresses, self._ranks.index(self._transport.rank))
        except OSError:
            return None

    async def _all_gather(self, what: str, mine: bytes) -> list[bytes]:
        return await all_gather(self._transport, self._ranks, (*self._key, what), mine)
