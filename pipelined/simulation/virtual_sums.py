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
        key: its name; for a gradient sum the stages of the parameters.
        ranks: the ranks of the sum.
        start: its start: all ranks have joined and have ended their earlier sums.
        end: the time at which every rank has the result.
    """

    key: Hashable
    ranks: tuple[int, ...]
    start: float
    end: float

    @property
    def name(self) -> str:
        """The name that a trace of training gives it."""
        return f"stage {'+'.join(map(str, self.key))}" if isinstance(self.key, tuple) else str(self.key)


class _PendingSum:
    """The ranks of a sum, its seconds, the number of ranks that have not joined, and its end once all have joined."""

    def __init__(self, ranks: tuple[int, ...], seconds: float):
        self.ranks = ranks
        self.seconds = seconds
        self.ranks_missing = len(ranks)
        self.complete = asyncio.Event()
        self.end = 0.0


class VirtualSums:
    """All sums of a step.

    Args:
        sums: for each name the ranks of the sum, ascending, and its seconds.

    Attributes:
        completed_sums: the sums that all ranks have joined, in that order.
    """

    def __init__(self, sums: Mapping[Hashable, tuple[tuple[int, ...], float]]):
        self.completed_sums: list[Sum] = []
        self._clock = VirtualClock()
        self._pending = {key: _PendingSum(*sum_) for key, sum_ in sums.items()}
        self._spans: dict[int, list[tuple[float, float]]] = defaultdict(list)

    def ranks(self, key: Hashable) -> tuple[int, ...]:
        return self._pending[key].ranks

    async def join(self, key: Hashable) -> None:
        """Join a sum and wait for its end; each of its ranks calls this once."""
        pending = self._pending[key]
        pending.ranks_missing -= 1
        if not pending.ranks_missing:
            pending.end = self._start(key, pending.ranks, pending.seconds)
            pending.complete.set()
        await pending.complete.wait()
        await self._clock.sleep(pending.end - self._clock.now())

    def overlap(self, rank: int, start: float, end: float) -> float:
        """Seconds between `start` and `end` in which a rank is in a sum."""
        spans: Sequence[tuple[float, float]] = self._spans.get(rank, ())
        return sum(max(0.0, min(end, high) - max(start, low)) for low, high in spans)

    def _start(self, key: Hashable, ranks: tuple[int, ...], seconds: float) -> float:
        free_from = max(self._spans[rank][-1][1] if self._spans[rank] else 0.0 for rank in ranks)
        start = max(self._clock.now(), free_from)
        for rank in ranks:
            self._spans[rank].append((start, start + seconds))
        self.completed_sums.append(Sum(key, ranks, start, start + seconds))
        return start + seconds
