"""The leader's part in evaluating: when validation data is in the queue, and what is kept of it.

The one rule: what is measured is the parameters of one step, so the next is not decided before that is done; and it is
done once, for the directory has the loss and the version where it was measured. Whoever leads next finds it there, or
measures it again, to the same bit.
"""

from collections.abc import Awaitable, Callable

from pipelined.aio.clock import Clock
from pipelined.aio.notifier import Notifier
from pipelined.membership.view import MembershipView
from pipelined.swarm.config import Rules
from pipelined.swarm.leader.work_queue import SlotLatency, WorkQueue
from pipelined.swarm.records import EVALUATED, Evaluated, Head, Record

Write = Callable[[str, Record, int], Awaitable[None]]
"""Write a record under a key, found at this revision, as only who leads can."""


class Evaluating:
    """One leader's assignments, and the evaluations on them.

    Args:
        steps: after so many the run is over; None: never.
        changed: notified whenever a queue has changed.

    Attributes:
        latency: of the slots, over all steps.
    """

    def __init__(self, view: MembershipView, rules: Rules, clock: Clock, steps: int | None, changed: Notifier):
        self._view, self._rules, self._steps, self._changed = view, rules, steps, changed
        self.latency = SlotLatency(clock.now, rules.lease_s)

    def new_queue(self, head: Head) -> WorkQueue:
        """What is to be done where the swarm stands: a step, unless the last is taken, and perhaps an evaluation."""
        rules, held_out = self._rules, self._rules.eval_batch if self.due(head) else 0
        return WorkQueue(rules.batch, rules.stages, held_out, self.latency, self._over(head.step))

    def next_queue(self, head: Head) -> WorkQueue | None:
        """What is to be done of the step after, before it stands; None where updates are not delayed, or it is none."""
        if not self._rules.delayed or self._over(head.step + 1):
            return None
        return WorkQueue(self._rules.batch, self._rules.stages, 0, self.latency)

    def hold_out(self, head: Head, queue: WorkQueue) -> None:
        """Put the evaluation into a queue that was opened before its step stood, if there is to be one."""
        if self.due(head):
            queue.hold_out(self._rules.eval_batch)

    def due(self, head: Head) -> bool:
        """Whether the parameters where the swarm stands are still to be evaluated."""
        return due(head, self._view.evaluated, self._rules, self._steps)

    async def beside(self, step: Callable[[], Awaitable[Head]], head: Head, queue: WorkQueue, write: Write) -> Head:
        """Take a step, and do not have it decided before the evaluation is told; behind the last there is none.

        Args:
            step: takes it.
        """
        after = None if self._over(head.step) else await step()
        if self.due(head):
            while not queue.scored:
                await self._changed.wait()
            await write(EVALUATED, Evaluated(*head.version, queue.loss), self._view.evaluated_revision)
        while after is None:  # whoever is over ends this
            await self._changed.wait()
        return after

    def _over(self, step: int) -> bool:
        return self._steps is not None and step >= self._steps


def due(head: Head, evaluated: Evaluated | None, rules: Rules, steps: int | None) -> bool:
    """Whether the parameters of a head are to be evaluated, and were not.

    Args:
        evaluated: the last evaluation.
        steps: after so many the run is over; None: never.
    """
    wanted = rules.evaluates(head.step, steps is not None and head.step >= steps)
    return wanted and (evaluated is None or evaluated.version != head.version)
