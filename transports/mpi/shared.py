"""Memory that the ranks of a group on one node share, over MPI: a window for each rank, and meetings.

A rank that waits at a meeting looks for its peers for some microseconds by itself, as most come at once; then it lets
the loop run between two looks; then doorbells or the naps of the progress engine wake it. The first rank of the group
tells all others whether there is such memory, so that all ranks decide alike.
"""

import asyncio
import os
from collections.abc import Sequence
from time import perf_counter

from transports.base import Transport
from transports.event_loop import step_aside
from transports.liveness import EndState
from transports.mpi.node import NodePeers
from transports.mpi.progress import ProgressEngine
from transports.shm.barrier import HEAD, Sleep, Windows
from transports.shm.memfd import ADDRESS_BYTES, Lent

TURN_S = 1e-3
"""The loop gets a turn after so many seconds at the latest."""
LOOK_S, CROWDED_LOOK_S = 200e-6, 1e-3
"""Seconds that one look for the others may take, alone on a core and where ranks share cores."""
KEEN_S = 2e-3
"""How long a rank looks again at each turn of the loop, before it sleeps."""


class MpiShared:
    """As `transports.base.Shared` promises it.

    Args:
        transport: by which the ranks meet at first.
        progress: the transport's; it wakes this rank when its doorbell rings.
        end_state: the transport's; it knows which peers are lost.
        node_peers: the transport's; it wakes a peer that sleeps.
        ranks: the group's, all on this node.
        channel: tells this group's messages from another's.
        nbytes: of each rank's window.
        crowded: whether the node has fewer cores than ranks, so that another rank may need this one's core to come.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        progress: ProgressEngine,
        end_state: EndState,
        node_peers: NodePeers,
        ranks: Sequence[int],
        channel: int,
        nbytes: int,
        crowded: bool,
    ):
        self._transport, self._progress, self._end_state, self._node_peers = transport, progress, end_state, node_peers
        self._ranks, self._nbytes, self._crowded = tuple(ranks), nbytes, crowded
        self._others = [rank for rank in ranks if rank != transport.rank]
        self._key = ("shared", channel, ",".join(map(str, ranks)))
        self._look = CROWDED_LOOK_S if crowded else LOOK_S
        self._due = 0.0

    async def ready(self) -> bool:
        lent = self._lent()
        try:
            address = bytes(ADDRESS_BYTES) if lent is None else lent.address
            addresses = await self._told("at", address)
            found = self._found(lent, addresses)
            everybody = await self._told("found", b"\0" if found is None else b"\1")
        except BaseException:
            found = None  # for the error keeps this frame
            raise
        finally:  # all ranks have mapped it, or this one was cancelled or lost a peer before
            if lent is not None:
                lent.close()
        if found is None or b"\0" in everybody:
            return False
        self._windows, self.windows = found, found.windows
        return True

    @property
    def meetings(self) -> int:
        return self._windows.meetings

    async def meet(self) -> None:
        windows = self._windows
        if windows.come() is None:
            for at in windows.wake():
                self._node_peers.ring(self._others[at])
        elif windows.watch(self._patience, self._crowded) is not None:
            await self._wait()
        if not self._due:
            self._due = perf_counter() + TURN_S
            asyncio.get_running_loop().call_soon(self._turned)
        elif perf_counter() > self._due:
            await step_aside()

    async def pause(self) -> None:
        if self._crowded:
            os.sched_yield()  # else the system takes the core away, for milliseconds at a time
        await step_aside()

    @property
    def _patience(self) -> float:
        return 0.0 if self._progress.gentle else self._look

    def _turned(self) -> None:
        """The loop has had a turn; the next meeting begins to count anew."""
        self._due = 0.0

    async def _wait(self) -> None:
        """Look again at each turn of the loop, then at each of the progress engine's."""
        start = perf_counter()
        while True:
            if self._patience and perf_counter() - start < KEEN_S:
                await asyncio.sleep(0)
            else:
                await self._sleep()
            if self._windows.watch(self._patience, self._crowded) is None:
                return
            self._check()

    async def _sleep(self) -> None:
        """Wait for the progress engine's next turn, which a ring brings about at once."""
        self._windows.sleep(Sleep.DEEP)
        try:
            if self._windows.met() is not None:
                await self._progress.turn()
        finally:
            self._windows.sleep(Sleep.NONE)

    def _check(self) -> None:
        """Raise if a rank that has not come is lost; one that came before it was lost has been seen."""
        absent = self._windows.met()
        if absent is not None:
            self._end_state.check_sendable(self._others[absent])

    def _lent(self) -> Lent | None:
        try:
            return Lent(HEAD + self._nbytes)
        except OSError:
            return None

    def _found(self, lent: Lent | None, addresses: Sequence[bytes]) -> Windows | None:
        try:
            return None if lent is None else Windows(lent, addresses, self._ranks.index(self._transport.rank))
        except OSError:
            return None

    async def _told(self, what: str, mine: bytes) -> list[bytes]:
        """Gather a value of every rank of the group, in its order, by way of the first rank."""
        first, *others = self._ranks
        up, down = (*self._key, what, "up"), (*self._key, what, "down")
        if self._transport.rank != first:
            await self._transport.send(first, up, note=mine)
            return list((await self._transport.receive(first, down)).note)
        came = await asyncio.gather(*(self._transport.receive(rank, up) for rank in others))
        everything = [mine, *(frame.note for frame in came)]
        await asyncio.gather(*(self._transport.send(rank, down, note=everything) for rank in others))
        return everything
