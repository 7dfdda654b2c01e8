"""The commit of steps: prepare and reduce, repeated until every stage holds the total of exactly one batch.

A failed attempt changes only the queue, which then assigns the missing microbatches. The result is the head of the next
step. `Leader` writes that head to the directory, and that write commits the step.
"""

import hashlib
import math
import secrets
from collections.abc import Callable, Sequence

from pipelined.aio.backoff import Backoff
from pipelined.aio.clock import Clock
from pipelined.aio.events import emit, warn
from pipelined.aio.notifier import Notifier
from pipelined.aio.nursery import Nursery
from pipelined.membership.client import Asking
from pipelined.membership.messages import RoundName
from pipelined.swarm.config import Rules
from pipelined.swarm.leader.commit_round import CommitRound, Cover, Failed, Failure
from pipelined.swarm.leader.connectivity import ConnectivityCheck
from pipelined.swarm.leader.rebalance import RebalanceTimer
from pipelined.swarm.leader.work_queue import WorkQueue
from pipelined.swarm.records import Head
from pipelined.swarm.view import SwarmView

FIRST_PAUSE_S, MOST_PAUSE_S = 0.01, 1.0
SHARE = 0.8
"""Part of the time to compute a step that an overlapped sum may take. In the rest of the time the last parts arrive and
the step is committed."""


class CommitLoop:
    """Takes one step after another to its commit, for one leader.

    Args:
        connectivity: checks the members that a round waits for.
        timer: decides when peers change stage.
        changed: notified whenever a queue has changed, here or elsewhere.

    Attributes:
        phase: of the current step: "counting", "preparing" or "summing".
        attempts: how many were made at the current step.
        last_failure: step, attempt and reason of the last failed attempt; "": no attempt of this leader failed.
    """

    def __init__(
        self,
        view: SwarmView,
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
        """Make attempts until every stage holds the total of exactly one batch. Returns the next head.

        Args:
            head: the committed step.
            begun: whether peers may have counted microbatches already, and then stopped counting for the former leader.
                If so, the first attempt starts at once, without waiting for the queue.
            name: returns the name of the next attempt, greater than all earlier names.
            complete: called each time every stage is known to hold the batch, before the sum. Returns whether trainers
                compute the next step meanwhile, so that no trainer waits for the sum.
        """
        backoff, within = Backoff(FIRST_PAUSE_S, MOST_PAUSE_S), 0.0
        failed, plain = list[Sequence[Failure]](), set[int]()
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
                if await self._connectivity.evict(attempt.name.term, failed):
                    failed.clear()
                queue.reconcile(attempt.missing(covers))
                await self._resumed(attempt, covers, queue, backoff.next())
                within = 0.0
                continue
            self._connectivity.summed([list(each) for each in attempt.replies], self._clock.now() - began)
            return self._head_after(head, attempt, covers, squares)

    def _said(self, head: Head, attempt: CommitRound, error: Failed) -> Sequence[Failure]:
        """Record why an attempt failed. Missing microbatches are common: a peer died, or the leader changed."""
        self.last_failure = f"step {head.step + 1}, attempt {self.attempts}: {error}"
        (warn if attempt.failures else emit)("attempt failed", step=head.step + 1, round=str(attempt.name), why=error)
        for stage, why in attempt.beyond_codec.items():
            warn("sum goes uncoded", step=head.step + 1, stage=stage, codec=self._rules.sums_codec, why=why)
        return attempt.failures

    def _leeway(self, queue: WorkQueue) -> float:
        """Seconds for a sum that overlaps the next step: from the faster of the last two steps, as one may be slow."""
        before, self._took = self._took, queue.took
        return SHARE * min(before, self._took)

    async def _resumed(self, attempt: CommitRound, covers: Sequence[Cover], queue: WorkQueue, pause: float) -> None:
        """Have every peer count again until no microbatch is missing; meanwhile repeat the request to silent peers."""
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
            round=str(attempt.name),
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
    """Name everything that the parameters follow from: the lineage before, every stage's total, and the scale."""
    text = repr([head.lineage, attempt.digests, scale])
    run = head.version.run or secrets.token_hex(6)
    return f"{run}-{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"
