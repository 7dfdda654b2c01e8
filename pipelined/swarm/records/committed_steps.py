"""The steps of a swarm as its directory records them: each commit, rollback and evaluation, once and in order.

A view wakes its waiters once for several changes. The reports of a training follow this, and miss no step.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TypeVar

from pipelined.aio.clock import Clock
from pipelined.membership.directory import Change
from pipelined.membership.record import Record
from pipelined.membership.view import Table
from pipelined.swarm.records.steps import EVALUATED, HEAD, STEP_MEMBERS, Evaluation, Head, StepMembers
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules

R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class StepsBegan:
    """A head to which no sums led: where training begins or continues, or the target of a rollback.

    Args:
        rolled_back: whether this process had seen another head before.
        loss: on validation data, if it was measured before this process saw the head.
    """

    head: Head
    rolled_back: bool
    loss: float | None


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """A step of training.

    Args:
        head: to which it led.
        seconds: a step took; steps whose records arrive in one message share the time equally.
        evaluates: whether its parameters are evaluated. `StepEvaluated` follows, unless the swarm rolls back.
    """

    head: Head
    seconds: float
    evaluates: bool


@dataclass(frozen=True, slots=True)
class StepEvaluated:
    """The loss on validation data of the last head."""

    head: Head
    loss: float


StepEvent = StepsBegan | StepCommitted | StepEvaluated


class CommittedSteps:
    """Follows the steps of one training.

    Args:
        view: of all stages.
        steps: number of steps after which the training is over; None: never.
    """

    def __init__(self, view: SwarmView, rules: Rules, clock: Clock, steps: int | None):
        self._view = view
        self._rules = rules
        self._clock = clock
        self._steps = steps
        self._step_members = Table(StepMembers, keeps_last_valid=False)
        self._head: Head | None = None
        self._evaluation: Evaluation | None = None
        self._is_evaluation_due = False
        self._step_start_s = 0.0

    async def follow(self) -> AsyncIterator[StepEvent]:
        """Yield every event from the present head on, until the last step is committed and, if due, evaluated."""
        view = self._view
        with view.change_queue((HEAD, STEP_MEMBERS, EVALUATED)) as queue:
            self._step_members.update(view.step_members)
            for event in self._events([(view.evaluation, view.head)]):
                yield event
            while not self._is_over():
                await view.wait_for(lambda: len(queue) > 0)
                changes = [queue.popleft() for _ in range(len(queue))]
                revisions = [self._read(list(group)) for _, group in groupby(changes, attrgetter("revision"))]
                for event in self._events(revisions):
                    yield event

    def _read(self, changes: Sequence[Change]) -> tuple[Evaluation | None, Head | None]:
        """The records of one revision; one that cannot be read is left out."""
        evaluation, head = None, None
        for change in changes:
            if change.key.startswith(STEP_MEMBERS):
                self._apply_members(change)
            elif change.key == HEAD:
                head = _unpack_record(Head, change)
            elif change.key == EVALUATED:
                evaluation = _unpack_record(Evaluation, change)
        return evaluation, head.with_members(self._step_members.values()) if head else None

    def _apply_members(self, change: Change) -> None:
        with suppress(ValueError):
            self._step_members.apply(change.key.removeprefix(STEP_MEMBERS), change.entry)

    def _events(self, revisions: Sequence[tuple[Evaluation | None, Head | None]]) -> Iterator[StepEvent]:
        now = self._clock.now()
        last_head = self._head
        steps = max([head.step for _, head in revisions if head and last_head], default=0) - (
            last_head.step if last_head else 0
        )
        seconds = (now - self._step_start_s) / max(1, steps)
        for evaluation, head in revisions:
            if evaluation is not None:
                self._evaluation = evaluation
                yield from self._evaluation_events()
            if head is not None and self._head is not None and head.repeats_step:
                self._head = head  # the same step is computed again: no event
            elif head is not None and (self._head is None or head.version != self._head.version):
                yield self._event_of(head, seconds)
                yield from self._evaluation_events()
                self._step_start_s = now

    def _event_of(self, head: Head, seconds: float) -> StepEvent:
        """The event of a new head."""
        last_head, self._head = self._head, head
        self._is_evaluation_due = self._rules.evaluates(head.step, self._is_last(head))
        if last_head is not None and head.was_summed and head.step > last_head.step:
            return StepCommitted(head, seconds, self._is_evaluation_due)
        loss = self._loss_at(head) if self._is_evaluation_due and last_head is None else None
        self._is_evaluation_due = self._is_evaluation_due and loss is None
        return StepsBegan(head, last_head is not None, loss)

    def _evaluation_events(self) -> Iterator[StepEvent]:
        """The evaluation of the last head, if it is due and known."""
        if self._is_evaluation_due and self._head and (loss := self._loss_at(self._head)) is not None:
            self._is_evaluation_due = False
            yield StepEvaluated(self._head, loss)

    def _loss_at(self, head: Head) -> float | None:
        """The loss on validation data of this head; None: not known yet."""
        return self._evaluation.loss if self._evaluation and self._evaluation.version == head.version else None

    def _is_over(self) -> bool:
        return self._head is not None and self._is_last(self._head) and not self._is_evaluation_due

    def _is_last(self, head: Head) -> bool:
        return self._steps is not None and head.step >= self._steps


def _unpack_record(kind: type[R], change: Change) -> R | None:
    with suppress(ValueError):  # another release wrote it; the view reports that
        return kind.unpack(change.entry.value) if change.entry else None
    return None
