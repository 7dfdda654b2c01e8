"""The leader takes the swarm from step to step: the trainer that holds the leader's key in the directory.

A step has two phases. In the first, every peer of every stage reports which microbatches its sum holds, until together
these are exactly the batch at each stage. In the second, each stage sums among its peers. When all of them hold the
total, the leader moves the directory's head; only this move commits the step. A former leader that has not yet seen its
replacement cannot move the head, because the transaction expects the leader's key at its own revision. Either all
stages take a step or none does. When a leader dies, peers keep their sums, and the next leader requests their counts.
"""

import asyncio
import math
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from pipelined.aio.events import emit, warn
from pipelined.aio.notifier import Notifier
from pipelined.aio.nursery import Nursery
from pipelined.directory import Conflict, CutOff
from pipelined.directory.record import Record
from pipelined.directory.registration import Registration
from pipelined.membership.client import Asking, Node
from pipelined.membership.fields import Malformed
from pipelined.membership.messages import RoundName
from pipelined.membership.reasons import Reason
from pipelined.membership.records import LEADER, LeaderRecord
from pipelined.membership.view import RETRY_S, NoLongerValid
from pipelined.state.versions import SavedStage
from pipelined.swarm.config import OtherModel, Rules
from pipelined.swarm.leader.assignments import Assignments
from pipelined.swarm.leader.commit import CommitLoop
from pipelined.swarm.leader.connectivity import ConnectivityCheck
from pipelined.swarm.leader.evaluation import Evaluating
from pipelined.swarm.leader.rebalance import Moves, RebalanceTimer
from pipelined.swarm.leader.recovery import EmergencyReassignment, Rollback
from pipelined.swarm.leader.work_queue import WorkQueue
from pipelined.swarm.placement import Placing
from pipelined.swarm.protocol.work import AssignedStage, GetStage, GetWork, WorkItem
from pipelined.swarm.records import HEAD, LOST, Head, Lost
from pipelined.swarm.view import SwarmView
from transports.rpc import Party, Rejected


class LeadershipLost(Exception):
    """Another trainer leads, or this trainer gave up leadership."""


class Leader:
    """One trainer's part in leading: it leads whenever no other trainer leads.

    Args:
        node: the trainer's process.
        moves: decides which peers change stage, once every `rules.rebalance_s`.
        rollback: detects when all stages must return to a saved step.
        steps: number of steps after which the run is over; None: never.
    """

    def __init__(
        self,
        node: Node,
        view: SwarmView,
        rules: Rules,
        *,
        moves: Moves,
        rollback: Rollback,
        steps: int | None = None,
    ):
        clock, client = node.clock, Asking(node.endpoint, view)
        self._me = LeaderRecord(node.name, node.endpoint.address)
        self._view, self._rules, self._clock = view, rules, clock
        self._rollback, self._term, self._attempts = rollback, 0, 0
        self._changed, self._reassignment = Notifier(), EmergencyReassignment(view, rules, clock)
        self._placing = Placing(view, rules.stages)
        self._evaluating = Evaluating(view, rules, clock, steps, self._changed)
        self._assignments = Assignments(view, self._evaluating, self._changed)
        self._connectivity = ConnectivityCheck(view, client, rules, clock)
        timer = RebalanceTimer(moves, rules.rebalance_s, clock)
        self._commits = CommitLoop(
            view, client, rules, clock, timer=timer, connectivity=self._connectivity, changed=self._changed
        )

    @property
    def left(self) -> int | None:
        """Microbatches that the current step still lacks; None while another trainer leads."""
        return self._assignments.left

    @property
    def progress(self) -> dict[str, Any]:
        """Progress of the current step, for status; empty while another trainer leads."""
        commits = self._commits
        progress = {"step_phase": commits.phase, "attempt": commits.attempts, "last_failure": commits.last_failure}
        return progress if self._assignments.open else {}

    @property
    def unscored(self) -> int | None:
        """Microbatches of validation data without a score; None while another trainer leads."""
        return self._assignments.unscored

    async def run(self, registration: Registration) -> None:
        """Lead whenever no other trainer leads, until cancelled.

        This trainer may find its own name under the leader's key: the directory was cut off before its reply arrived.
        """
        directory, view = self._view.directory, self._view
        while True:
            await self._connectivity.stand_back()
            await view.wait_for(lambda: view.leader in (None, self._me) and self._can_begin)
            try:
                self._term = await directory.transact(
                    {LEADER: view.leader_revision}, {LEADER: self._me.pack()}, lease=registration.lease
                )
            except (Conflict, CutOff):
                await self._clock.sleep(RETRY_S)
                continue
            await view.wait_for(lambda: view.revision >= self._term)
            emit("leads", trainer=self._me.name, term=self._term)
            try:
                await self._lead()
            except LeadershipLost as error:
                warn("leadership lost", trainer=self._me.name, term=self._term, why=error)
                continue
            finally:
                self._assignments.close()

    async def work(self, request: GetWork, sender: Party) -> WorkItem:
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
            if not self._assignments.open:
                raise Rejected(Reason.NOT_LEADING)
            if not self._view.is_here(trainer):  # it left meanwhile: a microbatch assigned now would never be freed
                raise Rejected(Reason.STRANGER, address=sender.address)
            item = self._assignments.take(slot)
            if item is not None:
                return item
            await self._news(self._assignments.late_in)

    async def place(self, request: GetStage, sender: Party) -> AssignedStage:
        """Reply to a newcomer with the stage that it is to hold.

        Raises:
            Rejected: "not leading"; "stranger": the newcomer has not announced itself in the directory.
        """
        if self._view.leader != self._me:
            raise Rejected(Reason.NOT_LEADING)
        return await self._placing.place(request, sender)

    async def _lead(self) -> None:
        """Take step after step, while departed members' assignments are freed.

        Raises:
            LeadershipLost: another trainer leads, or must lead.
        """
        if not self._can_begin:
            await self._resign()
        if self._view.head is None:
            await self._decide(await self._while_leading(self._first()), self._view.head_revision)
        if self._view.head.model != self._rules.digest:
            raise OtherModel(self._rules.digest, self._view.head.model)
        async with Nursery() as tasks:
            tasks.create_task(self._assignments.watch())
            tasks.create_task(self._tell_losses())
            await self._take_steps()

    @property
    def _can_begin(self) -> bool:
        """Whether this trainer knows the head or may write the first one: not if the directory has one that cannot be
        read, unless this trainer resumes from a saved step. Another trainer may remember the head.
        """
        return self._view.head is not None or not self._view.head_revision or self._rollback.resume

    async def _resign(self) -> NoReturn:
        """Raises: LeadershipLost: always."""
        with suppress(Conflict, CutOff):
            await self._view.directory.transact({LEADER: self._term}, {}, [LEADER])
        raise LeadershipLost("the directory's head cannot be read, and this trainer remembers no other")

    async def _tell_losses(self) -> None:
        """Write to the directory which stages are lost, until cancelled; before the first step no stage counts as lost.

        Raises:
            LeadershipLost: another trainer leads.
        """
        view = self._view
        while True:
            stages = range(self._rules.stages if view.head.step else 0)
            lost = {stage for stage in stages if not view.census.holding(stage)}
            if lost - view.lost or (view.lost and not lost):
                before = view.lost_revision
                await self._write(LOST, Lost(sorted(lost)), before)
                await view.wait_for(lambda before=before: view.lost_revision != before)
            else:
                await view.next_change()

    async def _take_steps(self) -> None:
        known = 0  # steps in a row, taken by this leader, of which no peer counted anything for a former leader
        while True:
            head, revision = self._view.head, self._view.head_revision
            queue = self._assignments.turn_to(head, revision)
            after = await self._while_leading(self._led(head, revision, queue, known > self._rules.delayed))
            await self._decide(after, revision)
            known = known + 1 if after.step == head.step + 1 else 0

    async def _while_leading(self, work: Coroutine[Any, Any, Head]) -> Head:
        """Raises LeadershipLost: another trainer leads."""
        try:
            async with self._view.while_holds(lambda: self._view.leader_revision == self._term):
                return await work
        except NoLongerValid as error:
            raise LeadershipLost("the directory names another leader, or none") from error
        finally:
            work.close()  # if it was never started

    async def _first(self) -> Head:
        """The first head of a swarm: before the first step, or at the step that a former run saved."""
        return self._head_at(await self._rollback.needed()) if self._rollback.resume else self._head_at(None)

    async def _led(self, head: Head, revision: int, queue: WorkQueue, known: bool) -> Head:
        """Take the step, and open the next one meanwhile if possible; `known`: the queue has all that peers counted.

        Returns: the next head, or one that rolls all stages back, or one that moves peers to a deserted stage.
        """

        def complete() -> bool:
            return known and self._assignments.open_next(head, revision)

        step = lambda: self._commits.take(head, queue, not known, self._next_name, complete)  # noqa: E731
        async with Nursery() as tasks:
            taking = self._evaluating.beside(step, head, queue, self._write)
            ways = [tasks.create_task(way) for way in (taking, self._rollback.needed(), self._reassignment.needed())]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for task in ways:
                task.cancel()
        taken, back, called = ways
        if not taken.cancelled():
            return taken.result()
        if not back.cancelled():
            warn(
                "rolled back", step=head.step, to=back.result().step, why="a stage lost every peer that held its state"
            )
            return self._head_at(back.result())
        for peer, stage in called.result().items():
            warn("peer called", peer=peer, stage=stage, why="no peer that stays holds this stage")
        return replace(head, moves=called.result())

    def _head_at(self, saved: SavedStage | None) -> Head:
        """The head at a saved step; None: before the first step."""
        if saved is None:
            return Head(self._rules.stages, self._rules.digest)
        name = str(self._next_name())
        return Head(
            self._rules.stages, self._rules.digest, saved.step, name, lineage=saved.lineage, basis=saved.lineage
        )

    def _next_name(self) -> RoundName:
        self._attempts += 1
        return RoundName(self._term, self._attempts)

    async def _news(self, seconds: float) -> None:
        """Wait until a queue has changed, or for this many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                await self._changed.wait()

    async def _decide(self, head: Head, revision: int) -> None:
        """Move the head, and wait until this process sees it.

        Raises:
            LeadershipLost: another leader moved it, or another trainer leads.
        """
        view = self._view
        await self._put(HEAD, head.entries(view.took), revision)
        await view.wait_for(lambda: view.head is not None and view.head_revision > revision)

    async def _write(self, key: str, record: Record, revision: int) -> None:
        """Write a record that only the leader may write, under a key that is at this revision. Raises as `_put`."""
        await self._put(key, {key: record.pack()}, revision)

    async def _put(self, key: str, entries: Mapping[str, bytes], revision: int) -> None:
        """Put entries that only the leader may write, while the key is at this revision.

        Raises:
            LeadershipLost: another leader wrote the key, or another trainer leads.
        """
        while True:
            try:
                await self._view.directory.transact({key: revision, LEADER: self._term}, entries)
                return
            except Conflict as error:
                found = error.found.get(key)
                if found is None or found.value != entries[key]:
                    raise LeadershipLost(f"another leader wrote {key!r}, or leads") from error
                return  # the first attempt had succeeded before the directory was cut off
            except CutOff:
                await self._clock.sleep(RETRY_S)
