"""The commit of steps: prepare and reduce, again until every stage holds the total of exactly one batch.

A failed attempt changes only the queue, which then assigns what is missing. The result is the head of the next step;
`Leader` writes it to the directory, and that commits the step.
"""

import hashlib
import math
import secrets
from collections.abc import Callable, Sequence

from pipelined.aio.clock import Clock
from pipelined.aio.events import emit, warn
from pipelined.aio.notifier import Notifier
from pipelined.aio.nursery import Nursery
from pipelined.membership.client import Asking
from pipelined.membership.view import MembershipView
from pipelined.swarm.config import Rules
from pipelined.swarm.leader.commit_round import CommitRound, Cover, Failed, Failure
from pipelined.swarm.leader.connectivity import ConnectivityCheck
from pipelined.swarm.leader.rebalance import RebalanceTimer
from pipelined.swarm.leader.work_queue import WorkQueue
from pipelined.swarm.protocol import RoundName, round_text
from pipelined.swarm.records import Head

FIRST_PAUSE_S, MOST_PAUSE_S = 0.01, 1.0
SHARE = 0.8
"""Of the time to compute a step, for a sum that overlaps it; in the rest the last parts arrive and the step is
decided."""


class CommitLoop:
    """Brings one step after another to its commit, for one leader.

    Args:
        connectivity: of the members that a round waits for.
        timer: says when peers change stage.
        changed: notified whenever a queue has changed, here and elsewhere.

    Attributes:
        phase: of the step under way: "counting", "preparing" or "summing".
        attempts: at the step under way.
        last_failure: of which step and attempt, and why; "": no attempt of this leader failed.
    """

    def __init__(
        self,
        view: MembershipView,
        asking: Asking,
        rules: Rules,
        clock: Clock,
        *,
        timer: RebalanceTimer,
        connectivity: ConnectivityCheck,
        changed: Notifier,
    ):
        self._view, self._asking, self._rules, self._clock = view, asking, rules, clock
        self._connectivity = connectivity
        self._timer, self._changed, self._took = timer, changed, math.inf
        self.phase, self.attempts, self.last_failure = "", 0, ""

    async def take(
        self, head: Head, queue: WorkQueue, begun: bool, name: Callable[[], RoundName], complete: Callable[[], bool]
    ) -> Head:
        """Try until every stage holds the total of exactly one batch; the head that says so.

        Args:
            head: the step that stands.
            begun: peers may have counted already, and stopped counting for the former leader: ask them first.
            name: names every attempt, greater than all before.
            complete: called when every stage is known to hold the batch, before it is summed; maybe again. Says whether
                the next step is computed meanwhile, so that nothing waits for the sum.
        """
        pause, within, failed, plain = FIRST_PAUSE_S, 0.0, list[Sequence[Failure]](), set[int]()
        self.phase, self.attempts = "counting", 0
        if not begun:
            await self._connectivity.during(self._until(lambda: queue.complete), name())
            within = self._leeway(queue)
        while True:
            members = [self._view.holding(stage) for stage in range(self._rules.stages)]
            self.phase, self.attempts = "preparing", self.attempts + 1
            attempt = CommitRound(name(), head.step, self._rules.batch, members, self._asking)
            covers = await self._connectivity.during(attempt.prepare(), attempt.name, members)
            try:
                if any(covered.missing for covered in covers):
                    raise Failed("microbatches are missing")
                self.phase, began = "summing", self._clock.now()
                spread = within if complete() else 0.0
                summing = attempt.reduce(covers, spread, plain)
                squares = await self._connectivity.during(summing, attempt.name, members, spread)
            except Failed as error:
                self.phase = "counting"
                failed.append(self._said(head, attempt, error))
                plain |= attempt.beyond_codec.keys()
                if await self._connectivity.evict(attempt.name[0], failed):
                    failed.clear()
                queue.reconcile(attempt.missing(covers))
                await self._resumed(attempt, covers, queue, pause)
                pause, within = min(2 * pause, MOST_PAUSE_S), 0.0
                continue
            self._connectivity.summed([list(each) for each in attempt.replies], self._clock.now() - began)
            return self._head_after(head, attempt, covers, squares)

    def _said(self, head: Head, attempt: CommitRound, error: Failed) -> Sequence[Failure]:
        """Record why an attempt failed. That microbatches are missing is common: a peer died, or another led before."""
        self.last_failure = f"step {head.step + 1}, attempt {self.attempts}: {error}"
        (warn if attempt.failures else emit)(
            "attempt failed", step=head.step + 1, round=round_text(attempt.name), why=error
        )
        for stage, why in attempt.beyond_codec.items():
            warn("sum goes uncoded", step=head.step + 1, stage=stage, codec=self._rules.sums_codec, why=why)
        return attempt.failures

    def _leeway(self, queue: WorkQueue) -> float:
        """Seconds for a sum beside the next step: as the quicker of the last two was, for one may have been held up."""
        before, self._took = self._took, queue.took
        return SHARE * min(before, self._took)

    async def _resumed(self, attempt: CommitRound, covers: Sequence[Cover], queue: WorkQueue, pause: float) -> None:
        """Have every peer count again until nothing is missing; a peer that did not reply is asked again meanwhile."""
        async with Nursery() as tasks:
            telling = tasks.create_task(self._connectivity.during(attempt.resume(covers), attempt.name, attempt.asked))
            self._changed.notify_all()
            await self._clock.sleep(pause)
            await self._connectivity.during(self._until(lambda: queue.complete), attempt.name)
            telling.cancel()

    def _head_after(self, head: Head, attempt: CommitRound, covers: Sequence[Cover], squares: Sequence[float]) -> Head:
        norm = math.sqrt(math.fsum(squares))
        scale = self._rules.scale(norm)
        lineage = _lineage_after(head, attempt, scale)
        losses = [loss for name in covers[-1].keep for loss in attempt.replies[-1][name].losses.values()]
        return Head(
            stages=head.stages,
            model=head.model,
            step=head.step + 1,
            round=round_text(attempt.name),
            members=attempt.members(),
            scale=scale,
            loss=math.fsum(losses) / self._rules.samples,
            norm=norm / self._rules.samples,
            moves=self._moves(attempt),
            lineage=lineage,
            basis=head.lineage if self._rules.delayed else lineage,
        )

    def _moves(self, attempt: CommitRound) -> dict[str, int]:
        coming = [{peer.name: None for peer in self._view.joining(stage)} for stage in range(self._rules.stages)]
        moves = self._timer.due(
            coming, [{name: reply.load for name, reply in each.items()} for each in attempt.replies]
        )
        for peer, stage in moves.items():
            emit("peer moved", peer=peer, stage=stage, why="this stage has the most work a peer, its own the least")
        return moves

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()


def _lineage_after(head: Head, attempt: CommitRound, scale: float) -> str:
    """Name all that the parameters follow from: the lineage before, every stage's total, and the scale."""
    text = repr([head.lineage, attempt.digests, scale])
    run = head.version.run or secrets.token_hex(6)
    return f"{run}-{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"
