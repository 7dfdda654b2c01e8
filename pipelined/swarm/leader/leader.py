"""The leader takes the swarm from step to step: the trainer that holds the leader's key in the directory.

A step has two phases. In the first, every peer of every stage reports which microbatches its sum holds, until together
these are exactly the batch at each stage. In the second, each stage sums among its peers. When all of them hold the
total, the leader moves the directory's head; only this move commits the step. A former leader that has not yet seen its
replacement cannot move the head, because the transaction expects the leader's key at its own revision. Either all
stages take a step or none does. When a leader dies, peers keep their sums, and the next leader requests their counts.
"""

import asyncio
import math
from contextlib import suppress
from dataclasses import replace

from pipelined.aio.tasks import Notifier, first_of
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import Conflict, CutOff
from pipelined.membership.messaging.client import MemberClient
from pipelined.membership.messaging.fields import Malformed
from pipelined.membership.messaging.reasons import Reason
from pipelined.membership.registration import Registration
from pipelined.membership.view import RETRY_S
from pipelined.process.reporting.events import emit, shorten, warn
from pipelined.state.stages.versions import SavedStage
from pipelined.swarm.leader.assignments import Assignments, QueueFactory
from pipelined.swarm.leader.commit import CommitLoop, NextHead, OpenStep, Reassigned, Repeated, RolledBack, Stepped
from pipelined.swarm.leader.connectivity import ConnectivityCheck
from pipelined.swarm.leader.reassignment import EmergencyReassignment, Rebalance, RebalanceTimer, Rollback
from pipelined.swarm.leader.stage_assigner import StageAssigner
from pipelined.swarm.leader.term import LeadershipLost, Term, resign
from pipelined.swarm.protocol.status import LeaderReport
from pipelined.swarm.protocol.work import AssignedStage, GetStage, GetWork, WorkItem
from pipelined.swarm.records.members import LEADER, LeaderRecord
from pipelined.swarm.records.steps import HEAD, LOST, Head, LostStages
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from transports import Nursery
from transports.rpc import Party, Rejected


class Leader:
    """One trainer's part in leading: it leads whenever no other trainer leads.

    Args:
        local: the trainer's process.
        rebalance: decides which peers change stage, once every `rules.rebalance_s`.
        rollback: detects when all stages must return to a saved step.
        steps: number of steps after which the run is over; None: never.
    """

    def __init__(
        self,
        local: LocalMember,
        view: SwarmView,
        rules: Rules,
        *,
        rebalance: Rebalance,
        rollback: Rollback,
        steps: int | None,
    ):
        clock = local.clock
        client = MemberClient(local.endpoint, view)
        self._record = LeaderRecord(local.name, local.endpoint.address)
        self._view, self._rules, self._clock = view, rules, clock
        self._term = Term(view)
        self._rollback = rollback
        self._changed = Notifier()
        self._reassignment = EmergencyReassignment(view, rules, clock)
        self._assigner = StageAssigner(view, rules.stages)
        self._queues = QueueFactory(view, rules, clock, steps)
        self._assignments = Assignments(view, self._queues, self._changed)
        self._connectivity = ConnectivityCheck(view, client, rules, clock)
        self._commits = CommitLoop(
            view,
            rules,
            client,
            term=self._term,
            assignments=self._assignments,
            connectivity=self._connectivity,
            timer=RebalanceTimer(rebalance, rules.rebalance_s, clock),
            clock=clock,
        )

    @property
    def unscored(self) -> int | None:
        """Microbatches of validation data without a score; None while another trainer leads."""
        return self._assignments.unscored

    @property
    def report(self) -> LeaderReport | None:
        """What this leader does, for status; None while another trainer leads."""
        commits = self._commits
        microbatches_left = self._assignments.microbatches_left
        unscored = self._assignments.unscored
        if microbatches_left is None or unscored is None:
            return None
        return LeaderReport(microbatches_left, unscored, commits.phase, commits.rounds, shorten(commits.last_failure))

    async def run(self, registration: Registration) -> None:
        """Lead whenever no other trainer leads, until cancelled.

        This trainer may find its own name under the leader's key: the directory was cut off before its reply arrived.
        """
        directory, view = self._view.directory, self._view
        while True:
            await self._connectivity.wait_after_resignation()
            await view.wait_for(lambda: view.leader in (None, self._record) and self._can_begin)
            try:
                term = self._term.number = await directory.transact(
                    {LEADER: view.leader_revision}, {LEADER: self._record.pack()}, lease=registration.lease
                )
            except (Conflict, CutOff):
                await self._clock.sleep(RETRY_S)
                continue
            await view.wait_for(lambda: view.revision >= self._term.number)
            emit("leads", trainer=self._record.name, term=term)
            try:
                await self._lead()
            except LeadershipLost as error:
                warn("leadership lost", trainer=self._record.name, term=term, why=error)
            finally:
                self._assignments.close()

    async def assign_work(self, request: GetWork, sender: Party) -> WorkItem:
        """Record a slot's report, and reply with its next microbatch as soon as one is free.

        Raises:
            Rejected: "not leading"; "stranger": no trainer has this name, address and incarnation; "another model".
        """
        trainer = self._view.trainers.get(request.name)
        if trainer is None or (trainer.address, trainer.incarnation) != (sender.address, request.incarnation):
            raise Rejected(Reason.STRANGER, address=sender.address)
        if trainer.model != self._rules.digest:
            raise Rejected(Reason.OTHER_MODEL, here=self._rules.digest, there=trainer.model)
        if request.done and any(stage >= self._rules.stages for stage in request.done.counted):
            raise Malformed(f"a stage that the model has not (got: {sorted(request.done.counted)[-1]})")
        slot = f"{trainer.name}/{request.slot}"
        self._assignments.record_done(slot, request.done)
        while True:
            if not self._assignments.has_open_queue:
                raise Rejected(Reason.NOT_LEADING)
            if not self._view.is_present(trainer):  # it left meanwhile: a microbatch assigned now would never be freed
                raise Rejected(Reason.STRANGER, address=sender.address)
            item = self._assignments.take(slot)
            if item is not None:
                return item
            await self._wait_for_work(self._assignments.seconds_until_late)

    async def assign_stage(self, request: GetStage, sender: Party) -> AssignedStage:
        """Reply to a newcomer with the stage that it is to hold.

        Raises:
            Rejected: "not leading"; "stranger": the newcomer has not announced itself in the directory.
        """
        if self._view.leader != self._record:
            raise Rejected(Reason.NOT_LEADING)
        return await self._assigner.assign(request, sender)

    async def _lead(self) -> None:
        """Take step after step, while departed members' assignments are freed.

        Raises:
            LeadershipLost: another trainer leads, or must lead.
        """
        view = self._view
        if not self._can_begin:
            await resign(view, self._term.number)
            raise LeadershipLost("the directory's head cannot be read, and this trainer remembers no other")
        if view.head is None:
            await self._commit(await self._term.run(self._first_head()), view.head_revision)
        await view.wait_for_model(self._rules.digest)
        async with Nursery() as tasks:
            tasks.create_task(self._assignments.watch())
            tasks.create_task(self._publish_lost_stages())
            await self._take_steps()

    @property
    def _can_begin(self) -> bool:
        """Whether this trainer knows the head or may write the first one: not if the directory has one that cannot be
        read, unless this trainer resumes from a saved step. Another trainer may remember the head.
        """
        return self._view.head is not None or not self._view.head_revision or self._rollback.resume

    async def _publish_lost_stages(self) -> None:
        """Write to the directory which stages are lost, until cancelled; before the first step no stage counts as lost.

        Raises:
            LeadershipLost: another trainer leads.
        """
        view = self._view
        while True:
            has_begun = view.require_head().step or view.require_head().was_summed
            stages = range(self._rules.stages if has_begun else 0)
            lost_stages = {stage for stage in stages if not view.census.count_holding(stage)}
            if lost_stages - view.lost_stages or (view.lost_stages and not lost_stages):
                revision = view.lost_revision
                await self._term.write(LOST, LostStages(sorted(lost_stages)), revision)
                while view.lost_revision == revision:
                    await view.next_change()
            else:
                await view.next_change()

    async def _take_steps(self) -> None:
        summed_heads = 0  # in a row, under this leader
        while True:
            head = self._view.require_head()
            revision = self._view.head_revision
            queue = self._assignments.open_step(head, revision)
            # a peer may have stopped counting the current step, and with delayed updates the next, for a former leader
            knows_counts = summed_heads > (1 if self._rules.delayed else 0)
            step = OpenStep(head=head, revision=revision, queue=queue, knows_counts=knows_counts)
            outcome = await self._term.run(self._next_head(step))
            outcome.report(head)
            await self._commit(outcome.head, revision)
            match outcome:
                case Stepped() | Repeated():
                    summed_heads += 1
                case RolledBack() | Reassigned():
                    summed_heads = 0

    async def _first_head(self) -> Head:
        """The first head of a swarm: before the first step, or at the step that a former run saved."""
        return (await self._roll_back()).head if self._rollback.resume else self._head_at(None)

    async def _next_head(self, step: OpenStep) -> NextHead:
        """What follows first: the step, a rollback of all stages, or moves to a deserted stage."""
        return await first_of(self._take_step(step), self._roll_back(), self._reassign(step.head))

    async def _roll_back(self) -> RolledBack:
        """The head of a rollback, as soon as the swarm must roll back."""
        return RolledBack(self._head_at(await self._rollback.wait()))

    async def _reassign(self, head: Head) -> Reassigned:
        """This head with moves to a deserted stage, as soon as there is one."""
        return Reassigned(replace(head, moves=await self._reassignment.wait()))

    async def _take_step(self, step: OpenStep) -> Stepped | Repeated:
        """The next head, after the evaluation of this one is written. Never returns after the last step."""
        if self._queues.is_over(step.head.step):
            await self._assignments.finish_evaluation(step.head, step.queue, self._term)
            await asyncio.Event().wait()  # the trainer's process cancels this
        outcome = await self._commits.commit_step(step)
        await self._assignments.finish_evaluation(step.head, step.queue, self._term)
        return outcome

    def _head_at(self, saved_stage: SavedStage | None) -> Head:
        """The head at a saved step; None: before the first step."""
        if saved_stage is None:
            return Head(self._rules.stages, self._rules.digest)
        name = str(self._term.next_round())
        return Head(
            self._rules.stages,
            self._rules.digest,
            saved_stage.step,
            name,
            lineage=saved_stage.lineage,
            parameter_version=saved_stage.lineage,
        )

    async def _wait_for_work(self, seconds: float) -> None:
        """Wait until a queue has changed, or for this many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                await self._changed.wait()

    async def _commit(self, head: Head, revision: int) -> None:
        """Move the head, and wait until this process sees it.

        Raises:
            LeadershipLost: another leader moved it, or another trainer leads.
        """
        view = self._view
        await self._term.put(HEAD, head.entries(view.step_members), revision)
        await view.wait_for(lambda: view.head is not None and view.head_revision > revision)
