"""The commit of steps: prepare and reduce, repeated until every stage holds the total of exactly one batch.

A failed attempt changes only the queue, which then assigns the missing microbatches. The result is the head of the next
step. `Leader` writes that head to the directory, and that write commits the step.
"""

import hashlib
import math
import secrets
from collections.abc import Sequence

from pipelined.aio.backoff import Backoff
from pipelined.aio.clock import Clock
from pipelined.aio.events import emit, warn
from pipelined.aio.nursery import Nursery
from pipelined.membership.client import MemberClient
from pipelined.swarm.config import Rules
from pipelined.swarm.leader.assignments import Assignments
from pipelined.swarm.leader.commit_round import CommitRound, Cover, Failed, Failure
from pipelined.swarm.leader.connectivity import ConnectivityCheck
from pipelined.swarm.leader.reassignment import RebalanceTimer
from pipelined.swarm.leader.term import Term
from pipelined.swarm.leader.work_queue import WorkQueue
from pipelined.swarm.records.steps import Commit
from pipelined.swarm.records.view import SwarmView

FIRST_PAUSE_S, MOST_PAUSE_S = 0.01, 1.0
SHARE = 0.8
"""Part of the time to compute a step that an overlapped sum may take. In the rest of the time the last parts arrive and
the step is committed."""


class CommitLoop:
    """Takes one step after another to its commit, for one leader.

    Args:
        term: names the rounds.
        assignments: opens the next step when this one is known to be whole.
        connectivity: checks the members that a round waits for.
        timer: decides when peers change stage.

    Attributes:
        phase: of the current step: "counting", "preparing" or "summing".
        attempts: how many were made at the current step.
        last_failure: step, attempt and reason of the last failed attempt; "": no attempt of this leader failed.
    """

    def __init__(
        self,
        view: SwarmView,
        rules: Rules,
        client: MemberClient,
        *,
        term: Term,
        assignments: Assignments,
        connectivity: ConnectivityCheck,
        timer: RebalanceTimer,
        clock: Clock,
    ):
        self._view, self._rules, self._client, self._clock = view, rules, client, clock
        self._term, self._assignments, self._connectivity, self._timer = term, assignments, connectivity, timer
        self._last_step_s = math.inf
        self.phase, self.attempts, self.last_failure = "", 0, ""

    async def take(self, head: Commit, revision: int, queue: WorkQueue, known: bool) -> Commit:
        """Make attempts until every stage holds the total of exactly one batch. Returns the next head.

        With delayed updates, the next step is opened before the sum, so that trainers compute it meanwhile.

        Args:
            head, revision: the committed step, and the revision of its key.
            known: whether the queue has all that peers counted. Otherwise they may have stopped counting for a former
                leader, so the first attempt starts at once, without waiting for the queue.
        """
        backoff, within = Backoff(FIRST_PAUSE_S, MOST_PAUSE_S), 0.0
        failed, uncoded = list[Sequence[Failure]](), set[int]()
        self.phase, self.attempts = "counting", 0
        if known:
            await self._connectivity.during(self._assignments.wait_until_complete(queue), self._term.next_round())
            within = self._overlap_seconds(queue)
        while True:
            members = [self._view.holding(stage) for stage in range(self._rules.stages)]
            self.phase, self.attempts = "preparing", self.attempts + 1
            attempt = CommitRound(self._term.next_round(), head.step, self._rules.batch, members, self._client)
            covers = await self._connectivity.during(attempt.prepare(), attempt.name, members)
            try:
                if any(covered.missing for covered in covers):
                    raise Failed("microbatches are missing")
                self.phase, began = "summing", self._clock.now()
                overlaps = known and self._assignments.open_next(head, revision)
                spread = within if overlaps else 0.0
                summing = attempt.reduce(covers, spread, uncoded)
                squares = await self._connectivity.during(summing, attempt.name, members, spread)
            except Failed as error:
                self.phase = "counting"
                failed.append(self._record_failure(head, attempt, error))
                uncoded |= attempt.beyond_codec.keys()
                if await self._connectivity.evict(attempt.name.term, failed):
                    failed.clear()
                queue.reconcile(attempt.missing(covers))
                await self._resume(attempt, covers, queue, backoff.next())
                within = 0.0
                continue
            self._connectivity.summed([list(each) for each in attempt.replies], self._clock.now() - began)
            return self._head_after(head, attempt, covers, squares)

    def _record_failure(self, head: Commit, attempt: CommitRound, error: Failed) -> Sequence[Failure]:
        """Record why an attempt failed. Missing microbatches are common: a peer died, or the leader changed."""
        self.last_failure = f"step {head.step + 1}, attempt {self.attempts}: {error}"
        (warn if attempt.failures else emit)("attempt failed", step=head.step + 1, round=str(attempt.name), why=error)
        for stage, why in attempt.beyond_codec.items():
            warn("sum goes uncoded", step=head.step + 1, stage=stage, codec=self._rules.sums_codec, why=why)
        return attempt.failures

    def _overlap_seconds(self, queue: WorkQueue) -> float:
        """Seconds for a sum that overlaps the next step: from the faster of the last two steps, as one may be slow."""
        before, self._last_step_s = self._last_step_s, queue.took
        return SHARE * min(before, queue.took)

    async def _resume(self, attempt: CommitRound, covers: Sequence[Cover], queue: WorkQueue, pause: float) -> None:
        """Have every peer count again until no microbatch is missing; meanwhile repeat the request to silent peers."""
        async with Nursery() as tasks:
            resuming = tasks.create_task(self._connectivity.during(attempt.resume(covers), attempt.name, attempt.peers))
            self._assignments.notify()
            await self._clock.sleep(pause)
            await self._connectivity.during(self._assignments.wait_until_complete(queue), attempt.name)
            resuming.cancel()

    def _head_after(
        self, head: Commit, attempt: CommitRound, covers: Sequence[Cover], squares: Sequence[float]
    ) -> Commit:
        norm = math.sqrt(math.fsum(squares))
        scale = self._rules.scale(norm)
        lineage = _lineage_after(head, attempt, scale)
        losses = [loss for name in covers[-1].keep for loss in attempt.replies[-1][name].losses.values()]
        return Commit(
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
            parameter_version=head.lineage if self._rules.delayed else lineage,
        )

    def _moves(self, attempt: CommitRound) -> dict[str, int]:
        joining = [{peer.name: None for peer in self._view.joining(stage)} for stage in range(self._rules.stages)]
        moves = self._timer.due(
            joining, [{name: reply.load for name, reply in each.items()} for each in attempt.replies]
        )
        for peer, stage in moves.items():
            emit("peer moved", peer=peer, stage=stage, why="this stage has the most work a peer, its own the least")
        return moves


def _lineage_after(head: Commit, attempt: CommitRound, scale: float) -> str:
    """Name everything that the parameters follow from: the lineage before, every stage's total, and the scale."""
    text = repr([head.lineage, attempt.digests, scale])
    run = head.version.run or secrets.token_hex(6)
    return f"{run}-{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"
