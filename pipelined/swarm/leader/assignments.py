"""The work that a leader assigns: of the current step, of its evaluation and, with delayed updates, of the next step.

Microbatches of the current step are assigned first, because every trainer waits for that step. A queue that was opened
before its step became current stays in use, with its assignments. The step and the head's revision at opening name the
queue; a report that names another queue is dropped.

The evaluation measures the parameters of one step, so the leader commits the next step only after it. It happens once
a version: the directory has the loss and the version at which it was measured. A new leader finds the loss there, or
measures it again, with the same bits.
"""

from collections.abc import Set
from functools import partial
from typing import NamedTuple

from pipelined.aio.clock import Clock
from pipelined.aio.tasks import Notifier
from pipelined.swarm.leader.term import Term
from pipelined.swarm.leader.work_queue import SlotLatency, WorkQueue
from pipelined.swarm.protocol.work import WorkItem, WorkReport
from pipelined.swarm.records.steps import EVALUATED, Evaluation, Head
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules


class QueueFactory:
    """Builds the queues of one leader: of a step, of its evaluation, and of the next step.

    Args:
        steps: number of steps after which the run is over; None: never.

    Attributes:
        latency: the latency of the slots, over all steps.
    """

    def __init__(self, view: SwarmView, rules: Rules, clock: Clock, steps: int | None):
        self._view, self._rules, self._steps = view, rules, steps
        self.latency = SlotLatency(clock.now, rules.lease_s)

    def new_queue(self, head: Head) -> WorkQueue:
        """The work at this head: a step, unless the last is committed, and possibly an evaluation."""
        rules = self._rules
        held_out = self._rules.eval_batch if self.evaluation_due(head) else 0
        return WorkQueue(rules.batch, rules.stages, held_out, self.latency, self.is_over(head.step))

    def next_queue(self, head: Head) -> WorkQueue | None:
        """The work of the step after, before it is current; None where updates are not delayed, or the run is over."""
        if not self._rules.delayed or self.is_over(head.step + 1):
            return None
        return WorkQueue(self._rules.batch, self._rules.stages, 0, self.latency)

    def add_evaluation(self, head: Head, queue: WorkQueue) -> None:
        """Add the evaluation to a queue that was opened before its step was current, if one is due."""
        if self.evaluation_due(head):
            queue.add_evaluation(self._rules.eval_batch)

    def evaluation_due(self, head: Head) -> bool:
        """Whether the parameters at this head are still to be evaluated."""
        return evaluation_due(head, self._view.evaluation, self._rules, self._steps)

    def is_over(self, step: int) -> bool:
        """Whether the run is over after this many steps."""
        return self._steps is not None and step >= self._steps


def evaluation_due(head: Head, evaluation: Evaluation | None, rules: Rules, steps: int | None) -> bool:
    """Whether the parameters of a head must be evaluated, and have not been.

    Args:
        evaluation: the last evaluation.
        steps: number of steps after which the run is over; None: never.
    """
    is_due = rules.evaluates(head.step, steps is not None and head.step >= steps)
    return is_due and not head.repeats_step and (evaluation is None or evaluation.version != head.version)


class OpenQueue(NamedTuple):
    """A queue, and the step and parameters of its work.

    Args:
        step: the step of the work.
        parameter_version: the version of the parameters that the work needs; see `Head`.
        revision: the head's revision when the queue was opened.
    """

    step: int
    parameter_version: str
    revision: int
    queue: WorkQueue

    def is_work_at(self, head: Head) -> bool:
        """Whether the work of the queue is current at this head."""
        return (self.step, self.parameter_version) == (head.step, head.parameter_version)


class Assignments:
    """The assignments of one leader.

    Args:
        queues: builds the queues.
        changed: notified whenever a queue has changed.
    """

    def __init__(self, view: SwarmView, queues: QueueFactory, changed: Notifier):
        self._view, self._queues, self._changed = view, queues, changed
        self._open_queues: list[OpenQueue] = []

    async def wait_until_complete(self, queue: WorkQueue) -> None:
        """Wait until peers have counted every microbatch of a queue."""
        while not queue.complete:
            await self._changed.wait()

    async def finish_evaluation(self, head: Head, queue: WorkQueue, term: Term) -> None:
        """Wait for the evaluation of a head's parameters, if one is due, and write it.

        Raises:
            LeadershipLost: another trainer leads.
        """
        if self._queues.evaluation_due(head):
            while not queue.scored:
                await self._changed.wait()
            await term.write(EVALUATED, Evaluation(*head.version, queue.loss), self._view.evaluated_revision)

    def notify(self) -> None:
        """Wake the slots that wait for work, after a queue was changed elsewhere."""
        self._changed.notify_all()

    @property
    def has_open_queue(self) -> bool:
        """Whether any queue is open."""
        return bool(self._open_queues)

    @property
    def microbatches_left(self) -> int | None:
        """Microbatches that the current step still lacks; None without an open queue."""
        return self._open_queues[0].queue.microbatches_left if self._open_queues else None

    @property
    def unscored(self) -> int | None:
        """Microbatches of validation data without a score; None without an open queue."""
        return self._open_queues[0].queue.unscored if self._open_queues else None

    @property
    def seconds_until_late(self) -> float:
        """Seconds until an assignment is late if no report arrives before; may be infinite."""
        return min(open_queue.queue.seconds_until_late() for open_queue in self._open_queues)

    def open_step(self, head: Head, revision: int) -> WorkQueue:
        """Return the queue of the step that is current now: the one opened before for this step, or a new one."""
        early_queues = [open_queue for open_queue in self._open_queues[1:] if open_queue.is_work_at(head)]
        if early_queues:
            self._queues.add_evaluation(head, early_queues[0].queue)
        self._open_queues = early_queues or [
            OpenQueue(head.step, head.parameter_version, revision, self._queues.new_queue(head))
        ]
        self._changed.notify_all()
        return self._open_queues[0].queue

    def open_next(self, head: Head, revision: int) -> bool:
        """Open the queue of the step after this head too, if its parameters are known. Returns whether it is open."""
        if len(self._open_queues) == 1 and (queue := self._queues.next_queue(head)) is not None:
            self._open_queues.append(OpenQueue(head.step + 1, head.lineage, revision, queue))
            self._changed.notify_all()
        return len(self._open_queues) > 1

    def close(self) -> None:
        self._open_queues = []
        self._changed.notify_all()

    def take(self, slot: str) -> WorkItem | None:
        """The next microbatch for this slot of a trainer; None while no microbatch is free."""
        for step, parameter_version, revision, queue in self._open_queues:
            assigned = queue.take(slot)
            if assigned is not None:
                return WorkItem(step, assigned.index, assigned.stages, parameter_version, revision)
        return None

    def record_done(self, slot: str, report: WorkReport | None) -> None:
        """Record the report of a slot that requests more work; None: it has none."""
        for open_queue in self._open_queues:
            if report is not None and (report.step, report.revision) == (open_queue.step, open_queue.revision):
                open_queue.queue.record_done(slot, report.index, report.counted, report.score)
            open_queue.queue.requeue(lambda holder: holder == slot)
        self._changed.notify_all()

    async def watch(self) -> None:
        """Free the microbatches of departed slots and those that departed peers had counted, until cancelled."""
        view = self._view
        with view.census.departures() as peers:
            while True:
                trainers = list(view.trainers.values())
                await view.next_change()
                departed_trainers = {trainer.name for trainer in trainers if not view.is_present(trainer)}
                has_left = partial(_is_slot_of, departed_trainers)
                self._queues.latency.forget(has_left)
                for open_queue in self._open_queues:
                    open_queue.queue.requeue(has_left)
                    for peer in peers:
                        open_queue.queue.forget(peer.name, peer.successor)
                peers.clear()
                self._changed.notify_all()


def _is_slot_of(trainers: Set[str], slot: str) -> bool:
    """Whether a slot belongs to one of these trainers."""
    return slot.rpartition("/")[0] in trainers
