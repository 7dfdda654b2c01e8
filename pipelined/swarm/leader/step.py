"""Taking one step: prepare and reduce, again and again, until every stage holds the total of exactly one batch.

The one rule: a try that fails changes nothing but the queue, which then gives out what is missing. What comes out is
the head that would say that the step stands; whether it does is decided elsewhere.
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
from pipelined.swarm.leader.rebalance import Moving
from pipelined.swarm.leader.roll_call import RollCall
from pipelined.swarm.leader.round import Attempt, Cover, Failed, Failure
from pipelined.swarm.leader.work_queue import WorkQueue
from pipelined.swarm.protocol import RoundName, told
from pipelined.swarm.records import Head

FIRST_PAUSE_S, MOST_PAUSE_S = 0.01, 1.0
SHARE = 0.8
"""Of the time to compute a step, for a sum that overlaps it; in the rest the last parts arrive and the step is
decided."""


class Taking:
    """Takes steps, one after another, for whoever leads.

    Args:
        roll_call: of those whom a round waits for.
        changed: rung whenever a queue has changed, here and elsewhere.

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
        moving: Moving,
        roll_call: RollCall,
        changed: Notifier,
    ):
        self._view, self._asking, self._rules, self._clock = view, asking, rules, clock
        self._roll_call = roll_call
        self._moving, self._changed, self._took = moving, changed, math.inf
        self.phase, self.attempts, self.last_failure = "", 0, ""

    async def take(
        self, head: Head, queue: WorkQueue, begun: bool, name: Callable[[], RoundName], complete: Callable[[], bool]
    ) -> Head:
        """Try until every stage holds the total of exactly one batch; the head that says so.

        Args:
            head: the step that stands.
            begun: peers may have counted already, and count no more for who led before: ask them first.
            name: gives every try its own, greater than all before.
            complete: called when every stage is known to hold the batch, before it is summed; maybe again. Says whether
                the next step is computed meanwhile, so that nobody waits for the sum.
        """
        pause, within, failed, plain = FIRST_PAUSE_S, 0.0, list[Sequence[Failure]](), set[int]()
        self.phase, self.attempts = "counting", 0
        if not begun:
            await self._roll_call.during(self._until(lambda: queue.complete), name())
            within = self._leeway(queue)
        while True:
            members = [self._view.holding(stage) for stage in range(self._rules.stages)]
            self.phase, self.attempts = "preparing", self.attempts + 1
            attempt = Attempt(name(), head.step, self._rules.batch, members, self._asking)
            covers = await self._roll_call.during(attempt.prepare(), attempt.name, members)
            try:
                if any(covered.missing for covered in covers):
                    raise Failed("microbatches are missing")
                self.phase, began = "summing", self._clock.now()
                spread = within if complete() else 0.0
                summing = attempt.reduce(covers, spread, plain)
                squares = await self._roll_call.during(summing, attempt.name, members, spread)
            except Failed as error:
                self.phase = "counting"
                failed.append(self._said(head, attempt, error))
                plain |= attempt.beyond_codec.keys()
                if await self._roll_call.evict(attempt.name[0], failed):
                    failed.clear()
                queue.reconcile(attempt.missing(covers))
                await self._resumed(attempt, covers, queue, pause)
                pause, within = min(2 * pause, MOST_PAUSE_S), 0.0
                continue
            self._roll_call.summed([list(each) for each in attempt.told], self._clock.now() - began)
            return self._head_after(head, attempt, covers, squares)

    def _said(self, head: Head, attempt: Attempt, error: Failed) -> Sequence[Failure]:
        """Record why an attempt failed. That microbatches are missing is common: a peer died, or another led before."""
        self.last_failure = f"step {head.step + 1}, attempt {self.attempts}: {error}"
        (warn if attempt.failures else emit)("attempt failed", step=head.step + 1, round=told(attempt.name), why=error)
        for stage, why in attempt.beyond_codec.items():
            warn("sum goes uncoded", step=head.step + 1, stage=stage, codec=self._rules.sums_codec, why=why)
        return attempt.failures

    def _leeway(self, queue: WorkQueue) -> float:
        """Seconds for a sum beside the next step: as the quicker of the last two was, for one may have been held up."""
        before, self._took = self._took, queue.took
        return SHARE * min(before, self._took)

    async def _resumed(self, attempt: Attempt, covers: Sequence[Cover], queue: WorkQueue, pause: float) -> None:
        """Have everyone count again until nothing is missing; who did not hear that it may is told again meanwhile."""
        async with Nursery() as tasks:
            telling = tasks.create_task(self._roll_call.during(attempt.resume(covers), attempt.name, attempt.asked))
            self._changed.notify_all()
            await self._clock.sleep(pause)
            await self._roll_call.during(self._until(lambda: queue.complete), attempt.name)
            telling.cancel()

    def _head_after(self, head: Head, attempt: Attempt, covers: Sequence[Cover], squares: Sequence[float]) -> Head:
        norm = math.sqrt(math.fsum(squares))
        scale = self._rules.scale(norm)
        lineage = _lineage_after(head, attempt, scale)
        losses = [loss for name in covers[-1].keep for loss in attempt.told[-1][name].losses.values()]
        return Head(
            stages=head.stages,
            model=head.model,
            step=head.step + 1,
            round=told(attempt.name),
            members=attempt.members(),
            scale=scale,
            loss=math.fsum(losses) / self._rules.samples,
            norm=norm / self._rules.samples,
            moves=self._moves(attempt),
            lineage=lineage,
            basis=head.lineage if self._rules.delayed else lineage,
        )

    def _moves(self, attempt: Attempt) -> dict[str, int]:
        coming = [{peer.name: None for peer in self._view.joining(stage)} for stage in range(self._rules.stages)]
        moves = self._moving.due(coming, [{name: said.load for name, said in each.items()} for each in attempt.told])
        for peer, stage in moves.items():
            emit("peer moved", peer=peer, stage=stage, why="this stage has the most work a peer, its own the least")
        return moves

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self._changed.wait()


def _lineage_after(head: Head, attempt: Attempt, scale: float) -> str:
    """Names all that parameters follow from: where they were, every stage's total, and the scale."""
    said = repr([head.lineage, attempt.digests, scale])
    run = head.point.run or secrets.token_hex(6)
    return f"{run}-{hashlib.blake2b(said.encode(), digest_size=12).hexdigest()}"
