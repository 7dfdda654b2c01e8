"""The memory that ranks of one process share anyway, offered as a transport offers its node's.

The one rule: as between processes, nobody passes a meeting before all have come, and everybody learns who is gone.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from transports._loop import step_aside


class Table:
    """What the ranks of one group meet at: their windows, how often each has come, and who waits for the others."""

    def __init__(self, size: int, nbytes: int):
        self.windows = [memoryview(bytearray(nbytes)) for _ in range(size)]
        self.come = [0] * size
        self.waiting: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        """Let everyone who waits look again."""
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            with suppress(asyncio.InvalidStateError):
                future.set_result(None)


class LocalShared:
    """As `transports._contract.Shared` promises it.

    Args:
        ranks: the group's.
        place: this rank's among them.
        check: raises if this end has ended or that rank is lost.
    """

    def __init__(self, table: Table, ranks: Sequence[int], place: int, check: Callable[[int], None]):
        self._table, self._ranks, self._place, self._check = table, tuple(ranks), place, check
        self.windows = table.windows

    @property
    def meetings(self) -> int:
        return self._table.come[self._place]

    async def ready(self) -> bool:
        return True

    async def meet(self) -> None:
        come = self._table.come
        come[self._place] += 1
        self._table.wake()
        due = come[self._place]
        while (late := next((place for place, times in enumerate(come) if times < due), None)) is not None:
            self._check(self._ranks[late])
            future = asyncio.get_running_loop().create_future()
            self._table.waiting.append(future)
            await future

    async def pause(self) -> None:
        await step_aside()
