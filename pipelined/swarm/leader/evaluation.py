"""The leader's part in evaluation: when validation data enters the queue, and what the directory records of it.

The evaluation measures the parameters of one step, so the leader commits the next step only after it. It happens once
a version: the directory has the loss and the version at which it was measured. A new leader finds the loss there, or
measures it again, with the same bits.
"""

from pipelined.aio.clock import Clock
from pipelined.aio.notifier import Notifier
from pipelined.swarm.config import Rules
from pipelined.swarm.leader.term import Term
from pipelined.swarm.leader.work_queue import SlotLatency, WorkQueue
from pipelined.swarm.records import EVALUATED, Commit, Evaluation
from pipelined.swarm.view import SwarmView


class Evaluations:
    """The queues of one leader, and the evaluations on them.

    Args:
        steps: number of steps after which the run is over; None: never.
        changed: notified whenever a queue has changed.

    Attributes:
        latency: of the slots, over all steps.
    """

    def __init__(self, view: SwarmView, rules: Rules, clock: Clock, steps: int | None, changed: Notifier):
        self._view, self._rules, self._steps, self._changed = view, rules, steps, changed
        self.latency = SlotLatency(clock.now, rules.lease_s)

    def new_queue(self, head: Commit) -> WorkQueue:
        """The work at this head: a step, unless the last is committed, and possibly an evaluation."""
        rules, held_out = self._rules, self._rules.eval_batch if self.due(head) else 0
        return WorkQueue(rules.batch, rules.stages, held_out, self.latency, self.is_over(head.step))

    def next_queue(self, head: Commit) -> WorkQueue | None:
        """The work of the step after, before it is current; None where updates are not delayed, or the run is over."""
        if not self._rules.delayed or self.is_over(head.step + 1):
            return None
        return WorkQueue(self._rules.batch, self._rules.stages, 0, self.latency)

    def add_evaluation(self, head: Commit, queue: WorkQueue) -> None:
        """Add the evaluation to a queue that was opened before its step was current, if one is due."""
        if self.due(head):
            queue.hold_out(self._rules.eval_batch)

    def due(self, head: Commit) -> bool:
        """Whether the parameters at this head are still to be evaluated."""
        return due(head, self._view.evaluated, self._rules, self._steps)

    async def finish(self, head: Commit, queue: WorkQueue, term: Term) -> None:
        """Wait for the evaluation of these parameters, if one is due, and write it.

        Raises:
            LeadershipLost: another trainer leads.
        """
        if self.due(head):
            while not queue.scored:
                await self._changed.wait()
            await term.write(EVALUATED, Evaluation(*head.version, queue.loss), self._view.evaluated_revision)

    def is_over(self, step: int) -> bool:
        """Whether the run is over after this many steps."""
        return self._steps is not None and step >= self._steps


def due(head: Commit, evaluated: Evaluation | None, rules: Rules, steps: int | None) -> bool:
    """Whether the parameters of a head must be evaluated, and have not been.

    Args:
        evaluated: the last evaluation.
        steps: number of steps after which the run is over; None: never.
    """
    wanted = rules.evaluates(head.step, steps is not None and head.step >= steps)
    return wanted and (evaluated is None or evaluated.version != head.version)
