"""Memory that the ranks of a group on one node share, over MPI: a window for each rank, and barriers.

A rank that waits in a barrier first checks for its peers for some microseconds, because most arrive at once; then it
lets the loop run between two checks; then it sleeps until a doorbell or the progress engine wakes it. The first rank of
the group gathers whether every rank could map the memory and sends the result to all, so that all ranks decide alike.
"""

import asyncio
import os
from collections.abc import Sequence
from time import perf_counter

from transports.aio.event_loop import yield_to_timers
from transports.base import Transport
from transports.mpi.all_gather import all_gather_values
from transports.mpi.node import NodePeers
from transports.mpi.progress import ProgressEngine
from transports.shm.memfd import HANDLE_BYTES, MemoryFile
from transports.shm.windows import HEADER_BYTES, MappedWindows, WaitState
from transports.state import TransportState

YIELD_AFTER_S = 1e-3
"""The loop runs after at most this many seconds."""
CHECK_S, OVERSUBSCRIBED_CHECK_S = 200e-6, 1e-3
"""Maximum seconds of one check for the others: if this rank has its own core, and if ranks share cores."""
THREAD_WAIT_S = 5e-3
"""Seconds for which a thread other than the loop's waits for the others before it leaves that to the loop: each change
of threads takes up to half a millisecond where the cores are busy."""
SPIN_S = 2e-3
"""Seconds for which a rank checks at each turn of the loop, before it sleeps."""


class MpiSharedWindows:
    """Implements `transports.base.SharedWindows` over MPI.

    Args:
        windows: the mapped memory of the group; see `map_windows`.
        other_ranks: those of the group, in its order.
        state: the transport's, with the lost peers.
        engine: polls while this rank sleeps in a barrier; a doorbell wakes it.
        node_peers: rings the ranks that sleep in a barrier.
    """

    def __init__(
        self,
        windows: MappedWindows,
        other_ranks: Sequence[int],
        state: TransportState,
        engine: ProgressEngine,
        node_peers: NodePeers,
    ):
        self._mapped = windows
        self.windows = windows.windows
        self._other_ranks = other_ranks
        self._state, self._engine, self._node_peers = state, engine, node_peers
        self._oversubscribed = node_peers.oversubscribed
        self._check_s = OVERSUBSCRIBED_CHECK_S if self._oversubscribed else CHECK_S
        self._yield_at = 0.0

    @property
    def epoch(self) -> int:
        return self._mapped.epoch

    async def barrier(self) -> None:
        if not self._announce() and self._mapped.poll_for(self._spin_s, self._oversubscribed) is not None:
            await self._wait()
        if not self._yield_at:
            self._yield_at = perf_counter() + YIELD_AFTER_S
            asyncio.get_running_loop().call_soon(self._on_loop_turn)
        elif perf_counter() > self._yield_at:
            await yield_to_timers()

    @property
    def is_threadsafe(self) -> bool:
        return True  # a barrier is memory, a futex and a socket; the ranks of a group have one barrier at a time

    def arrive(self) -> bool:
        """See `SharedWindows.arrive`; a rank with a core of its own checks at first, and then naps as others do."""
        if self._announce() or self._mapped.poll_for(self._check_s, self._oversubscribed) is None:
            return True
        return self._mapped.poll_for(THREAD_WAIT_S, True) is None

    async def wait_for_missing(self) -> None:
        if self._mapped.first_missing() is not None:
            await self._wait()

    def _announce(self) -> bool:
        """Announce this rank's arrival; the last rank wakes the others. Returns whether all have arrived."""
        if self._mapped.arrive() is not None:
            return False
        for index in self._mapped.wake():
            self._node_peers.ring(self._other_ranks[index])
        return True

    async def yield_core(self) -> None:
        if self._oversubscribed:
            os.sched_yield()  # else the kernel preempts this rank for milliseconds at a time
        await yield_to_timers()

    @property
    def _spin_s(self) -> float:
        return 0.0 if self._engine.is_computing else self._check_s

    def _on_loop_turn(self) -> None:
        """The loop has had a turn; the next barrier sets a new deadline."""
        self._yield_at = 0.0

    async def _wait(self) -> None:
        """Check at each turn of the loop for `SPIN_S` seconds, then at each poll of the progress engine."""
        start = perf_counter()
        while True:
            if self._spin_s and perf_counter() - start < SPIN_S:
                await asyncio.sleep(0)
            else:
                await self._sleep()
            if self._mapped.poll_for(self._spin_s, self._oversubscribed) is None:
                return
            self._raise_if_lost()

    async def _sleep(self) -> None:
        """Wait for the progress engine's next poll; a ring triggers it at once."""
        self._mapped.sleep(WaitState.ASLEEP)
        try:
            if self._mapped.first_missing() is not None:
                await self._engine.next_poll()
        finally:
            self._mapped.sleep(WaitState.NONE)

    def _raise_if_lost(self) -> None:
        """Raise if a rank that has not arrived is lost. A rank that arrived before it was lost does not count."""
        missing = self._mapped.first_missing()
        if missing is not None:
            self._state.check_sendable(self._other_ranks[missing])


async def map_windows(transport: Transport, ranks: Sequence[int], channel: int, nbytes: int) -> MappedWindows | None:
    """Map a new window of each of these ranks, which all call this; None on all of them if one cannot map the others'.

    Args:
        transport: carries the handles of the windows.
        channel: distinguishes this group's messages from those of other groups.
    Raises: as `Transport.receive`.
    """
    key = ("shared", channel, ",".join(map(str, ranks)))
    segment = _new_segment(nbytes)
    try:
        handle = bytes(HANDLE_BYTES) if segment is None else segment.handle
        handles = await all_gather_values(transport, ranks, (*key, "at"), handle)
        windows = None if segment is None else _map(segment, handles, ranks.index(transport.rank))
        mapped = await all_gather_values(transport, ranks, (*key, "found"), b"\0" if windows is None else b"\1")
    except BaseException:
        windows = None  # the error's traceback keeps this frame alive
        raise
    finally:  # all ranks have mapped it, or this rank was cancelled or lost a peer
        if segment is not None:
            segment.close()
    return None if b"\0" in mapped else windows


def _new_segment(nbytes: int) -> MemoryFile | None:
    try:
        return MemoryFile(HEADER_BYTES + nbytes)
    except OSError:
        return None


def _map(segment: MemoryFile, handles: Sequence[bytes], index: int) -> MappedWindows | None:
    try:
        return MappedWindows(segment, handles, index)
    except OSError:
        return None
