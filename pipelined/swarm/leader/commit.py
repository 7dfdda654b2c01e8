"""The commit of steps: prepare and reduce, repeated until every stage holds the total of exactly one batch.

A failed round changes only the queue, which then assigns the missing microbatches. The result is one of the four
heads that can follow. `Leader` writes it to the directory, and that write commits the step.
"""

import hashlib
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from pipelined.aio.clock import Clock
from pipelined.aio.latency import Backoff
from pipelined.membership.messaging.client import MemberClient
from pipelined.process.reporting.events import emit, warn
from pipelined.swarm.leader.assignments import Assignments
from pipelined.swarm.leader.commit_round import CommitRound, PreparedRound, RoundFailed, Totals
from pipelined.swarm.leader.connectivity import ConnectivityCheck
from pipelined.swarm.leader.failures import Failure
from pipelined.swarm.leader.reassignment import RebalanceTimer
from pipelined.swarm.leader.term import Term
from pipelined.swarm.leader.work_queue import WorkQueue
from pipelined.swarm.protocol.rounds import RoundName
from pipelined.swarm.records.steps import Head
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from transports import Nursery


@dataclass(frozen=True, slots=True)
class Stepped:
    """The head of the next step: every stage holds the total of exactly one batch."""

    head: Head

    def report(self, head_before: Head) -> None:
        """Nothing to report: `CommittedSteps` shows each step."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """The head of the same step once more: its sums did not fit, and set the grids of the next round."""

    head: Head

    def report(self, head_before: Head) -> None:
        """Report which step is computed again."""
        emit("step repeated", step=head_before.step, why="a gradient does not fit the grid of its exact sum")


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The head at a step that all stages saved."""

    head: Head

    def report(self, head_before: Head) -> None:
        """Warn of the steps that are lost."""
        warn("rolled back", step=head_before.step, to=self.head.step, why="a stage lost every peer that held its state")


@dataclass(frozen=True, slots=True)
class Reassigned:
    """The same head with moves of peers to a stage that no peer that stays holds."""

    head: Head

    def report(self, head_before: Head) -> None:
        """Warn of every move."""
        for peer, stage in self.head.moves.items():
            warn("peer reassigned", peer=peer, stage=stage, why="no peer that stays holds this stage")


NextHead = Stepped | Repeated | RolledBack | Reassigned


FIRST_PAUSE_S, MAX_PAUSE_S = 0.01, 1.0
OVERLAP_SHARE = 0.8
"""Part of the time to compute a step that an overlapped sum may take. In the rest the step is committed."""


@dataclass(kw_only=True)
class OpenStep:
    """One step while rounds are made to commit it.

    Args:
        head, revision: the committed step before it, and the revision of its key.
        queue: the work of this step.
        knows_counts: whether the queue knows all that peers counted. Otherwise they may have stopped counting for a
            former leader, so the first round starts at once, without waiting for the queue.
        spread_s: seconds over which the next sum is spread if it overlaps the next step.
        failures: those of each round since the last eviction.
        uncoded_stages: those that sum without a codec from now on.
    """

    head: Head
    revision: int
    queue: WorkQueue
    knows_counts: bool
    spread_s: float = 0.0
    failures: list[Sequence[Failure]] = field(default_factory=list)
    uncoded_stages: set[int] = field(default_factory=set)
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE_S, MAX_PAUSE_S))


class CommitLoop:
    """Makes rounds until a step can be committed; `Leader` calls it for each step.

    Args:
        term: names the rounds.
        assignments: opens the next step when this one is known to be whole.
        connectivity: checks the members that a round waits for.
        timer: decides when peers change stage.

    Attributes:
        phase: of the current step: "counting", "preparing" or "summing".
        rounds: how many were made at the current step.
        last_failure: step, round and reason of the last round in which a member failed; "": none failed.
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
        self._view = view
        self._rules = rules
        self._client = client
        self._clock = clock
        self._term = term
        self._assignments = assignments
        self._connectivity = connectivity
        self._timer = timer
        self._last_step_s = math.inf
        self.phase, self.rounds, self.last_failure = "", 0, ""

    async def commit_step(self, step: OpenStep) -> Stepped | Repeated:
        """Make rounds until every stage holds the total of exactly one batch. Returns the head of the next step, or
        of this one again if the totals do not fit.

        With delayed updates, the next step is opened before the sum, so that trainers compute it meanwhile.
        """
        self.phase, self.rounds = "counting", 0
        if step.knows_counts:
            await self._connectivity.run_checked(
                self._assignments.wait_until_complete(step.queue), self._term.next_round()
            )
            step.spread_s = self._overlap_seconds(step.queue)
        while True:
            peers = [self._view.peers_with(stage) for stage in range(self._rules.stages)]
            self.phase, self.rounds = "preparing", self.rounds + 1
            round_ = CommitRound(self._term.next_round(), step.head.version, self._rules.batch, peers, self._client)
            prepared = await self._connectivity.run_checked(round_.prepare(), round_.name, peers)
            try:
                totals = await self._sum(step, round_, prepared)
            except RoundFailed as error:
                await self._recover(step, round_, prepared, error)
            else:
                next_head = self._head_after(step.head, round_.name, prepared, totals)
                return Stepped(next_head) if totals.fit else Repeated(next_head)

    async def _sum(self, step: OpenStep, round_: CommitRound, prepared: PreparedRound) -> Totals:
        """The totals of a whole batch. Raises RoundFailed: a microbatch is missing, or as `CommitRound.reduce`."""
        if any(sums.missing_microbatches for sums in prepared.chosen):
            raise RoundFailed("microbatches are missing")
        self.phase = "summing"
        start_s = self._clock.now()
        overlaps = step.knows_counts and self._assignments.open_next(step.head, step.revision)
        spread_s = step.spread_s if overlaps else 0.0
        summing = round_.reduce(prepared, spread_s, step.uncoded_stages)
        totals = await self._connectivity.run_checked(summing, round_.name, round_.peers, spread_s)
        self._connectivity.record_summed([list(reply) for reply in prepared.replies], self._clock.now() - start_s)
        return totals

    async def _recover(self, step: OpenStep, round_: CommitRound, prepared: PreparedRound, error: RoundFailed) -> None:
        """Record a failed round and evict members that failed too often; then wait until no microbatch is missing."""
        self.phase = "counting"
        self._record_failure(step.head, round_, error)
        step.failures.append(round_.log.failures)
        step.uncoded_stages |= round_.log.beyond_codec.keys()
        if await self._connectivity.evictor.evict_failed(round_.name.term, step.failures):
            step.failures.clear()
        step.queue.reconcile(prepared.missing_microbatches)
        await self._resume_until_complete(round_, prepared, step.queue, step.backoff.next())
        step.spread_s = 0.0

    def _record_failure(self, head: Head, round_: CommitRound, error: RoundFailed) -> None:
        """Report why a round failed. Missing microbatches are common: a peer died, or the leader changed."""
        if (log := round_.log).failures:
            self.last_failure = f"step {head.step}, round {self.rounds}: {error}"
        (warn if log.failures else emit)("attempt failed", step=head.step, round=str(round_.name), why=error)
        for stage, why in log.beyond_codec.items():
            warn("sum goes uncoded", step=head.step, stage=stage, codec=self._rules.sums_codec, why=why)

    def _overlap_seconds(self, queue: WorkQueue) -> float:
        """Seconds for a sum that overlaps the next step: from the faster of the last two steps, as one may be slow."""
        earlier_s, self._last_step_s = self._last_step_s, queue.duration_s
        return OVERLAP_SHARE * min(earlier_s, queue.duration_s)

    async def _resume_until_complete(
        self, round_: CommitRound, prepared: PreparedRound, queue: WorkQueue, pause: float
    ) -> None:
        """Have every peer count again until no microbatch is missing; meanwhile repeat the request to silent peers."""
        async with Nursery() as tasks:
            resuming = tasks.create_task(
                self._connectivity.run_checked(round_.resume(prepared), round_.name, round_.peers)
            )
            self._assignments.notify()
            await self._clock.sleep(pause)
            await self._connectivity.run_checked(self._assignments.wait_until_complete(queue), round_.name)
            resuming.cancel()

    def _head_after(self, head: Head, round_name: RoundName, prepared: PreparedRound, totals: Totals) -> Head:
        """The head to which these totals lead: of the next step, or, if they do not fit, of this one once more."""
        norm = math.sqrt(math.fsum(totals.squares))
        scale = self._rules.scale(norm) if totals.fit else 0.0
        lineage = _lineage_after(head, totals, scale)
        losses = [
            loss for name in prepared.chosen[-1].kept_peers for loss in prepared.replies[-1][name].losses.values()
        ]
        return Head(
            stages=head.stages,
            model=head.model,
            step=head.step + totals.fit,
            round=str(round_name),
            members=prepared.members,
            scale=scale,
            loss=math.fsum(losses) / self._rules.samples,
            norm=norm / self._rules.samples,
            moves=self._moves(prepared),
            lineage=lineage,
            parameter_version=head.lineage if self._rules.delayed else lineage,
        )

    def _moves(self, prepared: PreparedRound) -> dict[str, int]:
        joining = [{peer.name: None for peer in self._view.joining(stage)} for stage in range(self._rules.stages)]
        moves = self._timer.take_moves(
            joining, [{name: reply.load for name, reply in replies.items()} for replies in prepared.replies]
        )
        for peer, stage in moves.items():
            emit("peer moved", peer=peer, stage=stage, why="this stage has the most work a peer, its own the least")
        return moves


def _lineage_after(head: Head, totals: Totals, scale: float) -> str:
    """Name everything that the parameters follow from: the lineage before, every stage's total, and the scale."""
    text = repr([head.lineage, totals.digests, scale])
    run = head.version.run or secrets.token_hex(6)
    return f"{run}-{hashlib.blake2b(text.encode(), digest_size=12).hexdigest()}"
