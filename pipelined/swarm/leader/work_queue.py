"""The work of one step: microbatches that stages still lack, the slots that have them, and the slots' latencies.

A queue also holds validation data if the step's parameters are to be evaluated; it is assigned after the batch.
`TrainingWork` and `EvaluationWork` have what is still to be done of each. Trainers' reports may be wrong: each peer's
`Ledger` is authoritative, and `reconcile` corrects the queue by it before anything is summed.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from pipelined.aio.latency import TimeoutEstimator
from pipelined.swarm.leader.work_left import EvaluationWork, TrainingWork
from pipelined.swarm.protocol.work import Score

ENOUGH = 1
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
        self._patience = {held_out: TimeoutEstimator(least, ENOUGH) for held_out in (False, True)}
        self._doubted = set[str]()

    def observe(self, slot: str, held_out: bool, seconds: float) -> None:
        """Record the latency of one report; the slot is no longer in doubt.

        Args:
            held_out: whether the microbatch was validation data, which needs the forward pass only.
        """
        self._patience[held_out].observe(seconds)
        self._doubted.discard(slot)

    def limit(self, held_out: bool) -> float:
        """Seconds after which a report is late."""
        return self._patience[held_out].limit_after(0)

    def doubt(self, slot: str) -> None:
        """Record that a slot's report is late, and that its microbatch was assigned again."""
        self._doubted.add(slot)

    def doubts(self, slot: str) -> bool:
        """Whether the last assignment of a slot was not reported in time."""
        return slot in self._doubted

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Drop the slots that have left."""
        self._doubted = {slot for slot in self._doubted if not gone(slot)}


@dataclass(frozen=True, slots=True)
class Assignment:
    """A microbatch for a slot of a trainer, and the stages that must count it; no stage: it must be scored."""

    index: int
    stages: tuple[int, ...]


class WorkQueue:
    """The work of one step.

    Args:
        batch: microbatches of the step.
        stages: of the model.
        held_out: microbatches of validation data.
        latency: of the slots; None: no slot is ever late.
        over: whether the run is over, so that the queue holds validation data only.

    Attributes:
        took: seconds from opening until every microbatch was counted at every stage; 0 before.

    Cost: every call is linear in its arguments, at any size of batch; the search for a late assignment is linear in the
        number of current assignments, and happens once for all slots that wait until something changes.
    """

    def __init__(
        self, batch: int, stages: int, held_out: int = 0, latency: SlotLatency | None = None, over: bool = False
    ):
        self._latency = latency or SlotLatency(lambda: 0.0, math.inf)
        self._opened, self.took = self._latency.now(), 0.0
        self._training, self._evaluation = TrainingWork(batch, stages, over), EvaluationWork(batch)
        self._given: dict[int, dict[str, float]] = {}
        self._first_due: tuple[tuple[float, float], float, int | None] | None = None
        self._offered = {*self._training.free}
        self.hold_out(held_out)

    def hold_out(self, count: int) -> None:
        """Add microbatches of validation data, to be scored."""
        self._offered |= {*self._evaluation.add(count)}

    @property
    def complete(self) -> bool:
        """Whether every microbatch was counted at every stage, as far as reported."""
        return not self._training.left

    @property
    def scored(self) -> bool:
        """Whether all validation data has its score."""
        return not self._evaluation.left

    @property
    def unscored(self) -> int:
        """Microbatches of validation data that have no score yet."""
        return self._evaluation.left

    @property
    def left(self) -> int:
        """Microbatches that still lack a stage or their score."""
        return self._training.left + self._evaluation.left

    @property
    def loss(self) -> float:
        """Mean over the samples of validation data, summed in the order of indices; needs `scored` and some data."""
        return self._evaluation.loss

    def take(self, slot: str) -> Assignment | None:
        """The next microbatch for this slot of a trainer; None while no microbatch is free: see `late_in`.

        If all are assigned, a late one is assigned again. A slot with a late assignment is in doubt: it gets the
        microbatch that other slots would get last, and that microbatch stays free for them.
        """
        index = self._last() if self._latency.doubts(slot) else self._next()
        if index is None:
            index = self._latest()
            if index is None:
                return None
            for holder in self._given.get(index, ()):
                self._latency.doubt(holder)
        self._given.setdefault(index, {})[slot] = self._latency.now()
        self._first_due = None
        return Assignment(index, self._work_of(index).stages(index))

    def late_in(self) -> float:
        """Seconds until an assignment is late if no report arrives before; may be infinite."""
        return self._earliest()[0] - self._latency.now()

    def record_done(self, slot: str, index: int, counted: Mapping[int, str], score: Score | None = None) -> None:
        """Record a slot's report of one of its microbatches. If a stage did not count it, it is free again.

        Args:
            counted: by stage, the peer that counted it.
            score: of validation data.
        """
        if slot not in self._given.get(index, ()):
            return
        work = self._work_of(index)
        self._latency.observe(slot, work.held_out, self._latency.now() - self._given.pop(index)[slot])
        if isinstance(work, EvaluationWork):
            self._first_due = None
            work.record(index, score)
        else:
            with self._training_changes():
                for stage, peer in counted.items():
                    work.have(stage, index, peer)
        self._offer(index)

    def requeue(self, gone: Callable[[str], bool]) -> None:
        """Free the microbatches that these slots had."""
        for index, holders in list(self._given.items()):
            for slot in [slot for slot in holders if gone(slot)]:
                del holders[slot]
                self._first_due = None
            if not holders:
                del self._given[index]
            self._offer(index)

    def forget(self, peer: str, successor: str = "") -> None:
        """Remove a peer: the microbatches in its sum must be counted again, unless a successor took over the sum."""
        with self._training_changes():
            for index in self._training.forget(peer, successor):
                self._offer(index)

    def reconcile(self, missing: Sequence[Iterable[int] | None]) -> None:
        """Record what each stage's ledgers lack, as the peers report it; this overrules the reports of trainers.

        Args:
            missing: by stage; None where no peer reported.
        """
        with self._training_changes():
            for index in self._training.reconcile(missing):
                self._offer(index)

    @contextmanager
    def _training_changes(self) -> Iterator[None]:
        """A block that changes which stages lack what; it notes when the last microbatch was counted."""
        before, self._first_due = self._training.left, None
        yield
        if before and self.complete:
            self.took = self._latency.now() - self._opened

    def _work_of(self, index: int) -> TrainingWork | EvaluationWork:
        return self._training if index in self._training.indices else self._evaluation

    def _wanted(self, index: int) -> bool:
        return self._work_of(index).wants(index)

    def _offer(self, index: int) -> None:
        """Make a microbatch free, if it is wanted and only slots in doubt have it."""
        expected = any(not self._latency.doubts(slot) for slot in self._given.get(index, ()))
        if self._wanted(index) and not expected and index not in self._offered:
            self._work_of(index).free.append(index)
            self._offered.add(index)

    def _next(self) -> int | None:
        """Take the next free microbatch: of the batch first, as the step's sums wait for it, then validation data."""
        while free := self._training.free or self._evaluation.free:
            index = free.popleft()
            self._offered.discard(index)
            if self._wanted(index):
                return index
        return None

    def _last(self) -> int | None:
        """The last free microbatch, which stays free."""
        ends = chain(reversed(self._evaluation.free), reversed(self._training.free))
        return next((index for index in ends if self._wanted(index) and index not in self._given), None)

    def _latest(self) -> int | None:
        """The assignment that is late for longest; None: no assignment is late."""
        due, index = self._earliest()
        return index if due <= self._latency.now() else None

    def _earliest(self) -> tuple[float, int | None]:
        """When the first assignment is late, and which it is; searched for only if it can have changed."""
        limits = self._latency.limit(False), self._latency.limit(True)
        if self._first_due is None or self._first_due[0] != limits:
            self._first_due = limits, *min(self._due(), default=(math.inf, None))
        return self._first_due[1:]

    def _due(self) -> Iterator[tuple[float, int]]:
        """The moment at which each assignment is late; the limit doubles with each further slot that has it."""
        for index, holders in self._given.items():
            if self._wanted(index):
                limit = self._latency.limit(self._work_of(index).held_out)
                yield max(holders.values()) + limit * 2 ** (len(holders) - 1), index
