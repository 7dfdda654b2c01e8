"""The work of one step: microbatches that stages still lack, the slots that have them, and the slots' latencies.

A queue also holds validation data if the step's parameters are to be evaluated; it is assigned after the batch.
A `QueuedMicrobatch` has all that is known of one microbatch. Trainers' reports may be wrong: each peer's own count is
authoritative, and `reconcile` corrects the queue by it before anything is summed.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from pipelined.aio.latency import TimeoutEstimator
from pipelined.swarm.leader.queued_microbatch import QueuedMicrobatch
from pipelined.swarm.protocol.work import Score

MIN_LATENCIES = 1
"""Latencies from which the limit is computed: a step may have few, and a needless second assignment costs little."""


class SlotLatency:
    """Seconds from the assignment of a microbatch to its report, over all slots of a swarm, and the slots in doubt.

    Measured latencies of the same kind decide when an assignment is late, not a constant. This object outlives a step,
    so that a slot that did not report one microbatch does not delay every later step.

    Args:
        now: the clock.
        least: smallest limit, in seconds.
    """

    def __init__(self, now: Callable[[], float], least: float):
        self.now = now
        self._patience = {is_evaluation: TimeoutEstimator(least, MIN_LATENCIES) for is_evaluation in (False, True)}
        self._doubted_slots = set[str]()

    def observe(self, slot: str, is_evaluation: bool, seconds: float) -> None:
        """Record the latency of one report; the slot is no longer in doubt.

        Args:
            is_evaluation: whether the microbatch was validation data, which needs the forward pass only.
        """
        self._patience[is_evaluation].observe(seconds)
        self._doubted_slots.discard(slot)

    def limit(self, is_evaluation: bool) -> float:
        """Seconds after which a report is late."""
        return self._patience[is_evaluation].timeout_after(0)

    def doubt(self, slot: str) -> None:
        """Record that a slot's report is late, and that its microbatch was assigned again."""
        self._doubted_slots.add(slot)

    def doubts(self, slot: str) -> bool:
        """Whether this slot's last report is late."""
        return slot in self._doubted_slots

    def forget(self, has_left: Callable[[str], bool]) -> None:
        """Drop the slots that have left."""
        self._doubted_slots = {slot for slot in self._doubted_slots if not has_left(slot)}


@dataclass(frozen=True, slots=True)
class Assignment:
    """A microbatch for a slot of a trainer, and the stages that must count it; no stage: it must be scored."""

    index: int
    stages: tuple[int, ...]


class FirstLate(NamedTuple):
    """The assignment that will be late first.

    Args:
        moment: at which it is late; infinite if there is no assignment.
        limits: by which it was found, of training and of validation data.
    """

    moment: float
    item: QueuedMicrobatch | None
    limits: tuple[float, float]


class WorkQueue:
    """The work of one step.

    Args:
        batch: microbatches of the step.
        stages: of the model.
        held_out: microbatches of validation data.
        latency: of the slots; None: no slot is ever late.
        is_over: whether the run is over, so that the queue holds validation data only.

    Attributes:
        duration_s: seconds from opening until every microbatch was counted at every stage; 0 before.

    Cost: every call is linear in its arguments, at any size of batch; the search for a late assignment is linear in the
        number of current assignments, and happens once for all slots that wait until something changes.
    """

    def __init__(
        self, batch: int, stages: int, held_out: int = 0, latency: SlotLatency | None = None, is_over: bool = False
    ):
        self._latency = latency or SlotLatency(lambda: 0.0, math.inf)
        self._opened = self._latency.now()
        self.duration_s = 0.0
        self._training = [QueuedMicrobatch(index, range(0 if is_over else stages)) for index in range(batch)]
        self._evaluation = list[QueuedMicrobatch]()
        self._free_training = deque[QueuedMicrobatch](self._training)
        self._free_evaluation = deque[QueuedMicrobatch]()
        self._unfinished = Counter[bool]({False: 0 if is_over else batch})  # by whether it is validation data
        self._assigned = dict[int, QueuedMicrobatch]()  # by index, those that have a holder
        self._cached_first_late: FirstLate | None = None  # None: to be searched for again
        self.add_evaluation(held_out)

    def add_evaluation(self, count: int) -> None:
        """Add microbatches of validation data, to be scored."""
        first_index = len(self._training) + len(self._evaluation)
        microbatches = [QueuedMicrobatch(first_index + number, None) for number in range(count)]
        self._evaluation += microbatches
        self._free_evaluation += microbatches
        self._unfinished[True] += count

    @property
    def complete(self) -> bool:
        """Whether every microbatch was counted at every stage, as far as reported."""
        return not self._unfinished[False]

    @property
    def scored(self) -> bool:
        """Whether all validation data has its score."""
        return not self.unscored

    @property
    def unscored(self) -> int:
        """Microbatches of validation data that have no score yet."""
        return self._unfinished[True]

    @property
    def microbatches_left(self) -> int:
        """Microbatches that still lack a stage or their score."""
        return self._unfinished.total()

    @property
    def loss(self) -> float:
        """Mean over the samples of validation data, summed in the order of indices; needs `scored` and some data."""
        scores = [item.score for item in self._evaluation if item.score is not None]
        return math.fsum(score.loss for score in scores) / sum(score.samples for score in scores)

    def take(self, slot: str) -> Assignment | None:
        """The next microbatch for this slot of a trainer; None while no microbatch is free: see `seconds_until_late`.

        If all are assigned, a late one is assigned again. A slot with a late assignment is in doubt: it gets the
        microbatch that other slots would get last, and that microbatch stays free for them.
        """
        item = self._last_free() if self._latency.doubts(slot) else self._take_free()
        if item is None:
            item = self._longest_late()
            if item is None:
                return None
            for holder in item.holders:
                self._latency.doubt(holder)
        self._assigned.setdefault(item.index, item).holders[slot] = self._latency.now()
        self._cached_first_late = None
        return Assignment(item.index, item.stages)

    def seconds_until_late(self) -> float:
        """Seconds until an assignment is late if no report arrives before; may be infinite."""
        return self._first_late().moment - self._latency.now()

    def record_done(self, slot: str, index: int, counted: Mapping[int, str], score: Score | None = None) -> None:
        """Record a slot's report of one of its microbatches. If a stage did not count it, it is free again.

        Args:
            counted: by stage, the peer that counted it.
            score: the score of a microbatch of validation data.
        """
        item = self._assigned.get(index)
        if item is None or slot not in item.holders:
            return
        self._latency.observe(slot, item.is_evaluation, self._latency.now() - item.holders[slot])
        item.holders.clear()
        del self._assigned[index]
        with self._changing([item]):
            item.report(counted, score)

    def requeue(self, has_left: Callable[[str], bool]) -> None:
        """Free the microbatches that these slots had."""
        for index, item in list(self._assigned.items()):
            for slot in [slot for slot in item.holders if has_left(slot)]:
                del item.holders[slot]
                self._cached_first_late = None
            if not item.holders:
                del self._assigned[index]
            self._offer(item)

    def forget(self, peer: str, successor: str = "") -> None:
        """Remove a peer: the microbatches in its sum must be counted again, unless a successor took over the sum."""
        with self._changing(self._training):
            for item in self._training:
                item.forget(peer, successor)

    def reconcile(self, missing: Sequence[Iterable[int] | None]) -> None:
        """Record what each stage's ledgers lack, as the peers report it; this overrules the reports of trainers.

        Args:
            missing: by stage; None where no peer reported.
        """
        with self._changing(self._training):
            for stage, indices in enumerate(missing):
                if indices is not None:
                    lacking = set(indices)
                    for item in self._training:
                        item.reconcile(stage, item.index in lacking)

    @contextmanager
    def _changing(self, items: Sequence[QueuedMicrobatch]) -> Iterator[None]:
        """A block that changes what these items need; it notes when the last microbatch was counted."""
        unfinished_before = [item.is_unfinished for item in items]
        was_complete = self.complete
        self._cached_first_late = None
        yield
        for item, was_unfinished in zip(items, unfinished_before, strict=True):
            self._unfinished[item.is_evaluation] += item.is_unfinished - was_unfinished
            self._offer(item)
        if self.complete and not was_complete:
            self.duration_s = self._latency.now() - self._opened

    def _offer(self, item: QueuedMicrobatch) -> None:
        """Make a microbatch free, if it is wanted and only slots in doubt have it."""
        is_expected = any(not self._latency.doubts(slot) for slot in item.holders)
        if item.is_unfinished and not is_expected and not item.is_free:
            (self._free_evaluation if item.is_evaluation else self._free_training).append(item)
            item.is_free = True

    def _take_free(self) -> QueuedMicrobatch | None:
        """Take the next free microbatch: of the batch first, as the step's sums wait for it, then validation data."""
        while free := self._free_training or self._free_evaluation:
            item = free.popleft()
            item.is_free = False
            if item.is_unfinished:
                return item
        return None

    def _last_free(self) -> QueuedMicrobatch | None:
        """The last free microbatch, which stays free."""
        free_microbatches = chain(reversed(self._free_evaluation), reversed(self._free_training))
        return next((item for item in free_microbatches if item.is_unfinished and not item.holders), None)

    def _longest_late(self) -> QueuedMicrobatch | None:
        """The assignment that is late for longest; None: no assignment is late."""
        first_late = self._first_late()
        return first_late.item if first_late.moment <= self._latency.now() else None

    def _first_late(self) -> FirstLate:
        """The assignment that will be late first; it is searched for only if it can have changed."""
        limits = self._latency.limit(False), self._latency.limit(True)
        if self._cached_first_late is None or self._cached_first_late.limits != limits:
            moment, index = min(self._late_moments(), default=(math.inf, None))
            self._cached_first_late = FirstLate(moment, None if index is None else self._assigned[index], limits)
        return self._cached_first_late

    def _late_moments(self) -> Iterator[tuple[float, int]]:
        """The moment at which each assignment is late; the limit doubles with each further slot that has it."""
        for index, item in self._assigned.items():
            if item.is_unfinished:
                limit = self._latency.limit(item.is_evaluation)
                yield max(item.holders.values()) + limit * 2 ** (len(item.holders) - 1), index
