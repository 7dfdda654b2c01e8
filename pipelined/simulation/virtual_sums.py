"""Sums over many ranks on the virtual clock: a sum can start when the last of its ranks has joined.

A rank takes part in one sum at a time, because its sums share its link to the network. A sum takes the seconds of its
algorithm's closed form. Sums start in the order in which they became complete, the same on every rank, so two sums
cannot wait for each other.
"""

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from pipelined.aio.clock import VirtualClock


@dataclass(frozen=True)
class Sum:
    """One sum of a simulated step; times are in seconds from the step's start.

    Args:
        what: its name; for a gradient sum the stages of the parameters.
        ranks: the ranks of the sum.
        start: its start: all ranks have joined and have ended their earlier sums.
        end: the time at which every rank has the result.
    """

    what: Hashable
    ranks: tuple[int, ...]
    start: float
    end: float

    @property
    def name(self) -> str:
        """The name that a trace of training gives it."""
        return f"stage {'+'.join(map(str, self.what))}" if isinstance(self.what, tuple) else str(self.what)


class _PendingSum:
    """The ranks of a sum, its seconds, the number of ranks that have not joined, and its end once all have joined."""

    def __init__(self, ranks: tuple[int, ...], seconds: float):
        self.ranks = ranks
        self.seconds = seconds
        self.missing = len(ranks)
        self.complete = asyncio.Event()
        self.end = 0.0


class VirtualSums:
    """All sums of a step.

    Args:
        sums: for each name the ranks of the sum, ascending, and its seconds.

    Attributes:
        done: the sums that all ranks have joined, in that order.
    """

    def __init__(self, sums: Mapping[Hashable, tuple[tuple[int, ...], float]]):
        self.done: list[Sum] = []
        self._clock = VirtualClock()
        self._pending = {what: _PendingSum(*of) for what, of in sums.items()}
        self._spans: dict[int, list[tuple[float, float]]] = defaultdict(list)

    def ranks(self, what: Hashable) -> tuple[int, ...]:
        return self._pending[what].ranks

    async def join(self, what: Hashable) -> None:
        """Join a sum and wait for its end; each of its ranks calls this once."""
        pending = self._pending[what]
        pending.missing -= 1
        if not pending.missing:
            pending.end = self._start(what, pending.ranks, pending.seconds)
            pending.complete.set()
        await pending.complete.wait()
        await self._clock.sleep(pending.end - self._clock.now())

    def overlap(self, rank: int, start: float, end: float) -> float:
        """Seconds between `start` and `end` in which a rank is in a sum."""
        spans: Sequence[tuple[float, float]] = self._spans.get(rank, ())
        return sum(max(0.0, min(end, high) - max(start, low)) for low, high in spans)

    def _start(self, what: Hashable, ranks: tuple[int, ...], seconds: float) -> float:
        free = max(self._spans[rank][-1][1] if self._spans[rank] else 0.0 for rank in ranks)
        start = max(self._clock.now(), free)
        for rank in ranks:
            self._spans[rank].append((start, start + seconds))
        self.done.append(Sum(what, ranks, start, start + seconds))
        return start + seconds
