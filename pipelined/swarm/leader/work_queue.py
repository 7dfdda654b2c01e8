"""The work of one step: the microbatches that stages still lack, and the slot that has each; with the slots' latencies.

Validation data is on it too, where the step's parameters are to be evaluated: those microbatches have the indices
behind the batch, are given out after it, and count nowhere; they come back as a score. What the leader was told may be
wrong: the ledgers of the peers are the truth, and `reconcile` brings them in before anything is summed.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from pipelined.aio.latency import Patience
from pipelined.swarm.protocol import Score

ENOUGH = 1
"""Answers that tell when others are late: a step may have few, and to ask another in vain costs little."""


class Pace:
    """The answer times of a swarm's slots.

    Args:
        now: the clock.
        least: seconds that are never too long.
    """

    def __init__(self, now: Callable[[], float], least: float):
        self.now = now
        self._patience = {held_out: Patience(least, ENOUGH) for held_out in (False, True)}
        self._doubted = set[str]()

    def observe(self, slot: str, held_out: bool, seconds: float) -> None:
        """A slot answered after so long; it is believed to go on doing so.

        Args:
            held_out: it was validation data, which goes forward only.
        """
        self._patience[held_out].observe(seconds)
        self._doubted.discard(slot)

    def limit(self, held_out: bool) -> float:
        """Seconds after which an answer is late."""
        return self._patience[held_out].limit_after(0)

    def doubt(self, slot: str) -> None:
        """A slot's answer is late, and another was asked."""
        self._doubted.add(slot)

    def doubts(self, slot: str) -> bool:
        """Whether the last that this slot was given never came back in time."""
        return slot in self._doubted

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Those slots are no more."""
        self._doubted = {slot for slot in self._doubted if not gone(slot)}


class Assignment(NamedTuple):
    """A microbatch for a trainer, and the stages at which it is to be counted; none: it is to be scored."""

    index: int
    stages: tuple[int, ...]


class WorkQueue:
    """One step's work.

    Args:
        batch: microbatches of the step.
        stages: of the model.
        held_out: microbatches of validation data.
        pace: by which slots are late; None: none ever is.
        over: no step is to be taken any more.

    Attributes:
        took: seconds from its opening until every microbatch was counted at every stage; 0 before.

    Cost: every call is linear in what it tells of, whatever the batch; the search for a late one in what is under way,
        once for all slots that wait until something changes.
    """

    def __init__(self, batch: int, stages: int, held_out: int = 0, pace: Pace | None = None, over: bool = False):
        self._pace = pace or Pace(lambda: 0.0, math.inf)
        self._opened, self.took = self._pace.now(), 0.0
        self._missing = [set(range(0 if over else stages)) for _ in range(batch)]
        self._incomplete = 0 if over else batch
        self._counted = [dict[int, str]() for _ in range(stages)]
        self._scores: list[Score | None] = []
        self._unscored = 0
        self._given: dict[int, dict[str, float]] = {}
        self._first_due: tuple[tuple[float, float], float, int | None] | None = None
        self._free, self._held_out = deque(range(batch)), deque[int]()
        self._offered = {*self._free}
        self.hold_out(held_out)

    def hold_out(self, count: int) -> None:
        """Have so many more microbatches of validation data scored."""
        first = len(self._missing) + len(self._scores)
        self._scores += [None] * count
        self._unscored += count
        self._held_out += range(first, first + count)
        self._offered |= {*range(first, first + count)}

    @property
    def complete(self) -> bool:
        """Every microbatch was counted at every stage, as far as is known."""
        return not self._incomplete

    @property
    def scored(self) -> bool:
        """All validation data has its score."""
        return not self._unscored

    @property
    def unscored(self) -> int:
        """Microbatches of validation data that have no score yet."""
        return self._unscored

    @property
    def left(self) -> int:
        """Microbatches that still miss a stage or their score."""
        return self._incomplete + self._unscored

    @property
    def loss(self) -> float:
        """Mean over the validation data's samples, in one order whoever scored them; needs `scored`, and some data."""
        samples = sum(score.samples for score in self._scores)
        return math.fsum(score.loss for score in self._scores) / samples

    def take(self, slot: str) -> Assignment | None:
        """The next microbatch for this slot of a trainer; None while there is none to give: see `late_in`.

        Where all are given one that is late is given again. Of who let one lie that was given to another in the end
        nothing is expected: what it gets stays to be had by others, and is what they would come to last.
        """
        index = self._last() if self._pace.doubts(slot) else self._next()
        if index is None:
            index = self._latest()
            for holder in self._given.get(index, ()):
                self._pace.doubt(holder)
        if index is None:
            return None
        self._given.setdefault(index, {})[slot] = self._pace.now()
        self._first_due = None
        return Assignment(index, tuple(sorted(self._missing[index])) if index < len(self._missing) else ())

    def late_in(self) -> float:
        """Seconds until something that is given is late, if no news comes; may be infinite."""
        return self._earliest()[0] - self._pace.now()

    def record_done(self, slot: str, index: int, counted: Mapping[int, str], score: Score | None = None) -> None:
        """A slot is through with one, the first of those who have it; what it lacks is given again.

        Args:
            counted: by stage, which peer has it.
            score: of validation data.
        """
        if slot not in self._given.get(index, ()):
            return
        held_out = index >= len(self._missing)
        self._pace.observe(slot, held_out, self._pace.now() - self._given.pop(index)[slot])
        self._first_due = None
        if not held_out:
            for stage, peer in counted.items():
                self._have(stage, index, peer)
        elif score is not None and score.samples > 0:
            self._scores[index - len(self._missing)] = score
            self._unscored -= 1
        self._offer(index)

    def requeue(self, gone: Callable[[str], bool]) -> None:
        """What those slots were at is given again."""
        for index, holders in list(self._given.items()):
            for slot in [slot for slot in holders if gone(slot)]:
                del holders[slot]
                self._first_due = None
            if not holders:
                del self._given[index]
            self._offer(index)

    def forget(self, peer: str, heir: str = "") -> None:
        """This peer is gone: what its sum held has to be counted again, unless another took the sum over."""
        for stage, counted in enumerate(self._counted):
            for index in [index for index, holder in counted.items() if holder == peer]:
                if heir:
                    counted[index] = heir
                else:
                    self._want(stage, index)

    def reconcile(self, missing: Sequence[Iterable[int] | None]) -> None:
        """What each stage's ledgers lack, as they say themselves: it overrules what trainers told.

        Args:
            missing: by stage; None where no ledger said anything.
        """
        for stage, indices in [(at, each) for at, each in enumerate(missing) if each is not None]:
            lacking = set(indices)
            for index in range(len(self._missing)):
                if index in lacking:
                    self._want(stage, index)
                else:
                    self._have(stage, index, self._counted[stage].get(index, ""))

    def _have(self, stage: int, index: int, peer: str) -> None:
        """One of its stages has a microbatch; which of its peers has it, if anybody said."""
        missing = self._missing[index]
        if missing == {stage}:
            self._incomplete -= 1
            self._first_due = None
            if self.complete:
                self.took = self._pace.now() - self._opened
        missing.discard(stage)
        if peer:
            self._counted[stage][index] = peer

    def _want(self, stage: int, index: int) -> None:
        self._counted[stage].pop(index, None)
        if not self._missing[index]:
            self._incomplete += 1
            self._first_due = None
        self._missing[index].add(stage)
        self._offer(index)

    def _wanted(self, index: int) -> bool:
        behind = index - len(self._missing)
        return bool(self._missing[index]) if behind < 0 else self._scores[behind] is None

    def _offer(self, index: int) -> None:
        """Let it be had, if it is wanted and nobody has it of whom anything is expected."""
        expected = any(not self._pace.doubts(slot) for slot in self._given.get(index, ()))
        if self._wanted(index) and not expected and index not in self._offered:
            (self._free if index < len(self._missing) else self._held_out).append(index)
            self._offered.add(index)

    def _next(self) -> int | None:
        """The next that is to be had, and no longer is: what the step's sums wait for before validation data."""
        while line := self._free or self._held_out:
            index = line.popleft()
            self._offered.discard(index)
            if self._wanted(index):
                return index
        return None

    def _last(self) -> int | None:
        """The last that is to be had, and stays so."""
        ends = chain(reversed(self._held_out), reversed(self._free))
        return next((index for index in ends if self._wanted(index) and index not in self._given), None)

    def _latest(self) -> int | None:
        """What is late, if anything is: that which is longest."""
        due, index = self._earliest()
        return index if due <= self._pace.now() else None

    def _earliest(self) -> tuple[float, int | None]:
        """When the first that is given is late, and which that is; looked for only where it can be another."""
        limits = self._pace.limit(False), self._pace.limit(True)
        if self._first_due is None or self._first_due[0] != limits:
            self._first_due = limits, *min(self._due(), default=(math.inf, None))
        return self._first_due[1:]

    def _due(self) -> Iterator[tuple[float, int]]:
        """By when each that is given is to be back; each time it is given to another too, twice as much later."""
        for index, holders in self._given.items():
            if self._wanted(index):
                limit = self._pace.limit(index >= len(self._missing))
                yield max(holders.values()) + limit * 2 ** (len(holders) - 1), index
