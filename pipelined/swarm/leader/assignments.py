"""The work that a leader assigns: of the current step and, with delayed updates, also of the next step.

Microbatches of the current step are assigned first, because every trainer waits for that step. A queue that was opened
before its step became current stays in use, with its assignments. The step and the head's revision at opening name the
queue; a report that names another queue is dropped.
"""

from typing import NamedTuple

from pipelined.aio.notifier import Notifier
from pipelined.swarm.leader.evaluation import Evaluations
from pipelined.swarm.leader.work_queue import WorkQueue
from pipelined.swarm.protocol.work import WorkItem, WorkReport
from pipelined.swarm.records import Commit
from pipelined.swarm.view import SwarmView


class OpenQueue(NamedTuple):
    """A queue, and the step and parameters of its work.

    Args:
        step: of the work.
        parameter_version: of the parameters that the work needs; see `Commit`.
        revision: of the head when the queue was opened.
    """

    step: int
    parameter_version: str
    revision: int
    queue: WorkQueue


class Assignments:
    """The assignments of one leader.

    Args:
        evaluations: builds the queues.
        changed: notified whenever a queue has changed.
    """

    def __init__(self, view: SwarmView, evaluations: Evaluations, changed: Notifier):
        self._view, self._evaluations, self._changed = view, evaluations, changed
        self._open: list[OpenQueue] = []

    async def wait_until_complete(self, queue: WorkQueue) -> None:
        """Wait until peers have counted every microbatch of a queue."""
        while not queue.complete:
            await self._changed.wait()

    def notify(self) -> None:
        """Wake the slots that wait for work, after a queue was changed elsewhere."""
        self._changed.notify_all()

    @property
    def open(self) -> bool:
        """Whether any queue is open."""
        return bool(self._open)

    @property
    def left(self) -> int | None:
        """Microbatches that the current step still lacks; None without an open queue."""
        return self._open[0].queue.left if self._open else None

    @property
    def unscored(self) -> int | None:
        """Microbatches of validation data without a score; None without an open queue."""
        return self._open[0].queue.unscored if self._open else None

    @property
    def late_in(self) -> float:
        """Seconds until an assignment is late if no report arrives before; may be infinite."""
        return min(opened.queue.late_in() for opened in self._open)

    def open_step(self, head: Commit, revision: int) -> WorkQueue:
        """Return the queue of the step that is current now: the one opened before for this step, or a new one."""
        before = [opened for opened in self._open[1:] if opened[:2] == (head.step, head.parameter_version)]
        self._open = before or [
            OpenQueue(head.step, head.parameter_version, revision, self._evaluations.new_queue(head))
        ]
        if before:
            self._evaluations.add_evaluation(head, before[0].queue)
        self._changed.notify_all()
        return self._open[0].queue

    def open_next(self, head: Commit, revision: int) -> bool:
        """Open the queue of the step after this head too, if its parameters are known. Returns whether it is open."""
        if len(self._open) == 1 and (queue := self._evaluations.next_queue(head)) is not None:
            self._open.append(OpenQueue(head.step + 1, head.lineage, revision, queue))
            self._changed.notify_all()
        return len(self._open) > 1

    def close(self) -> None:
        """Close all queues."""
        self._open = []
        self._changed.notify_all()

    def take(self, slot: str) -> WorkItem | None:
        """The next microbatch for this slot of a trainer; None while no microbatch is free."""
        for step, parameter_version, revision, queue in self._open:
            assigned = queue.take(slot)
            if assigned is not None:
                return WorkItem(step, assigned.index, assigned.stages, parameter_version, revision)
        return None

    def record_done(self, slot: str, done: WorkReport | None) -> None:
        """Record the report of a slot that requests more work; None: it has none."""
        for opened in self._open:
            if done is not None and (done.step, done.revision) == (opened.step, opened.revision):
                opened.queue.record_done(slot, done.index, done.counted, done.score)
            opened.queue.requeue(lambda held: held == slot)
        self._changed.notify_all()

    async def watch(self) -> None:
        """Free the microbatches of departed slots and those that departed peers had counted, until cancelled."""
        view = self._view
        with view.census.departures() as peers:
            while True:
                trainers = list(view.trainers.values())
                await view.next_change()
                gone = {each.name for each in trainers if not view.is_here(each)}
                left = lambda slot, gone=gone: slot.rpartition("/")[0] in gone  # noqa: E731
                self._evaluations.latency.forget(left)
                for opened in self._open:
                    opened.queue.requeue(left)
                    for peer in peers:
                        opened.queue.forget(peer.name, peer.successor)
                peers.clear()
                self._changed.notify_all()
