"""Sums over many ranks on the virtual clock: a sum begins when the last of its ranks has joined.

A rank takes part in one sum at a time, as its sums share its way to the network, and a sum lasts what its
algorithm's closed form says. Of several that are complete the one completed first goes first on every rank, so no two
wait for each other.
"""

import asyncio
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from pipelined.aio.clock import VirtualClock


@dataclass(frozen=True)
class Sum:
    """One sum as it went, in seconds from the step's start.

    Args:
        what: its name; the stages of the parameters, for a gradient's.
        ranks: those that took part.
        start: when it went on its way: all had joined, and none was in an earlier one.
        end: when every rank had the result.
    """

    what: Hashable
    ranks: tuple[int, ...]
    start: float
    end: float

    @property
    def name(self) -> str:
        """As a trace of training calls it."""
        return f"stage {'+'.join(map(str, self.what))}" if isinstance(self.what, tuple) else str(self.what)


class _Meeting:
    """The ranks of a sum, its seconds, how many ranks are missing, and its end once all have joined."""

    def __init__(self, ranks: tuple[int, ...], seconds: float):
        self.ranks, self.seconds, self.missing = ranks, seconds, len(ranks)
        self.complete, self.end = asyncio.Event(), 0.0


class VirtualSums:
    """All sums of a step.

    Args:
        sums: by name, the ranks that take part, ascending, and the seconds it lasts.

    Attributes:
        done: those that have begun, in the order of their completion.
    """

    def __init__(self, sums: Mapping[Hashable, tuple[tuple[int, ...], float]]):
        self.done: list[Sum] = []
        self._clock, self._meetings = VirtualClock(), {what: _Meeting(*of) for what, of in sums.items()}
        self._spans: dict[int, list[tuple[float, float]]] = defaultdict(list)

    def ranks(self, what: Hashable) -> tuple[int, ...]:
        """Who takes part in a sum."""
        return self._meetings[what].ranks

    async def join(self, what: Hashable) -> None:
        """Take part in a sum and wait for its end; each of its ranks calls this once."""
        meeting = self._meetings[what]
        meeting.missing -= 1
        if not meeting.missing:
            meeting.end = self._begin(what, meeting.ranks, meeting.seconds)
            meeting.complete.set()
        await meeting.complete.wait()
        await self._clock.sleep(meeting.end - self._clock.now())

    def overlap(self, rank: int, start: float, end: float) -> float:
        """Seconds of a stretch in which a rank takes part in a sum."""
        spans: Sequence[tuple[float, float]] = self._spans.get(rank, ())
        return sum(max(0.0, min(end, high) - max(start, low)) for low, high in spans)

    def _begin(self, what: Hashable, ranks: tuple[int, ...], seconds: float) -> float:
        free = max(self._spans[rank][-1][1] if self._spans[rank] else 0.0 for rank in ranks)
        start = max(self._clock.now(), free)
        for rank in ranks:
            self._spans[rank].append((start, start + seconds))
        self.done.append(Sum(what, ranks, start, start + seconds))
        return start + seconds
