"""Ranks of one process that pretend to run on nodes, and to share memory with the ranks of their node."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from transports.aio.event_loop import yield_to_timers
from transports.errors import PeerLost, TransportError
from transports.local import LocalTransport


class LocalRankOnNode(LocalTransport):
    """A rank on a node of its world, which may share memory with the ranks of its node."""

    def __init__(self, rank: int, ranks: Sequence["LocalRankOnNode"], nodes: tuple[int, ...], shared_memory: bool):
        super().__init__(rank, len(nodes), ranks)
        self._nodes, self._shared_memory, self._world = nodes, shared_memory, ranks
        self._tables: dict[tuple[tuple[int, ...], int, int], BarrierTable] = {}

    @property
    def nodes(self) -> tuple[int, ...]:
        return self._nodes

    async def open_shared(self, ranks: Sequence[int], channel: int, nbytes: int) -> "LocalShared | None":
        if not self._shared_memory or len({self.nodes[rank] for rank in ranks}) > 1:
            return None
        group = (tuple(ranks), channel, self.next_serial(("shared", tuple(ranks), channel)))
        found = (self._world[rank]._tables.get(group) for rank in ranks)
        self._tables[group] = next((table for table in found if table), None) or BarrierTable(len(ranks), nbytes)
        return LocalShared(self._tables[group], ranks, ranks.index(self.rank), self._state.check_sendable)

    def _lose(self, error: PeerLost) -> None:
        super()._lose(error)
        self._wake_sharers()

    def _finish(self, error: TransportError) -> None:
        super()._finish(error)
        self._wake_sharers()

    def _wake_sharers(self) -> None:
        """Let each rank that waits in a barrier check again which ranks are lost."""
        for table in self._tables.values():
            table.wake()


class BarrierTable:
    """The barriers of one group: the ranks' windows, the count of barriers of each, and the ranks that wait."""

    def __init__(self, size: int, nbytes: int):
        self.windows = [memoryview(bytearray(nbytes)) for _ in range(size)]
        self.epochs = [0] * size
        self.waiting: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        """Let every rank that waits check again."""
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            with suppress(asyncio.InvalidStateError):
                future.set_result(None)


class LocalShared:
    """`transports.base.SharedWindows` in one process: no rank leaves a barrier before all have arrived.

    Args:
        ranks: the ranks of the group.
        index: this rank's index in `ranks`.
        check: raises if this end has ended or the given rank is lost.
    """

    def __init__(self, table: BarrierTable, ranks: Sequence[int], index: int, check: Callable[[int], None]):
        self._table, self._ranks, self._index, self._check = table, tuple(ranks), index, check
        self.windows = table.windows
        self.is_threadsafe = False

    @property
    def epoch(self) -> int:
        return self._table.epochs[self._index]

    async def barrier(self) -> None:
        if not self.arrive():
            await self.wait_for_missing()

    def arrive(self) -> bool:
        self._table.epochs[self._index] += 1
        self._table.wake()
        return self._late is None

    async def wait_for_missing(self) -> None:
        while (late := self._late) is not None:
            self._check(self._ranks[late])
            future = asyncio.get_running_loop().create_future()
            self._table.waiting.append(future)
            await future

    @property
    def _late(self) -> int | None:
        """The index of the first rank that is missing at this barrier."""
        return next((index for index, epoch in enumerate(self._table.epochs) if epoch < self.epoch), None)

    async def yield_core(self) -> None:
        await yield_to_timers()
