"""Leading the swarm from step to step, by whichever trainer holds that key in the directory.

A step is taken in two phases. First every peer of every stage says which microbatches its sum holds, until together
these are exactly the batch at each stage; then each stage sums among its peers, and when every one of them holds the
total, the directory's head is moved: that, and nothing else, is the commit. Who led before and does not know yet that
it does no longer cannot move it, for the transaction expects the leader's own key as it was. All stages take a step
or none. A leader that dies leaves nothing undone: peers keep their sums, and the next one asks what they have.
"""

import asyncio
import math
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

from pipelined.aio.clock import Clock
from pipelined.aio.events import emit, warn
from pipelined.aio.notifier import Notifier
from pipelined.aio.nursery import Nursery
from pipelined.directory import Conflict, CutOff
from pipelined.directory.registration import Registration
from pipelined.membership.client import Asking
from pipelined.membership.view import RETRY_S, MembershipView, NoLongerValid
from pipelined.swarm.config import OtherModel, Rules
from pipelined.swarm.leader.assignments import Assignments
from pipelined.swarm.leader.commit import CommitLoop
from pipelined.swarm.leader.connectivity import ConnectivityCheck
from pipelined.swarm.leader.evaluation import Evaluating
from pipelined.swarm.leader.rebalance import Moves, RebalanceTimer
from pipelined.swarm.leader.recovery import EmergencyReassignment, Rollback
from pipelined.swarm.leader.work_queue import WorkQueue
from pipelined.swarm.placement import Placing
from pipelined.swarm.protocol import RoundName, field, round_text, whole
from pipelined.swarm.records import HEAD, LEADER, LOST, Head, LeaderRecord, Lost, Record, SavedStage
from transports.rpc import Rejected, Request, Response


class LeadershipLost(Exception):
    """Another trainer leads."""


class Leader:
    """One trainer's part in leading: it leads whenever no other trainer does.

    Args:
        name, address: of the trainer.
        moves: decides which peers change stage, once in `rules.rebalance_s`.
        rollback: knows when all stages must go back to what was saved.
        steps: after so many the run is over; None: never.
    """

    def __init__(
        self,
        name: str,
        address: str,
        view: MembershipView,
        asking: Asking,
        *,
        rules: Rules,
        clock: Clock,
        moves: Moves,
        rollback: Rollback,
        steps: int | None = None,
    ):
        self._me, self._view, self._rules, self._clock = LeaderRecord(name, address), view, rules, clock
        self._rollback, self._term, self._attempts = rollback, 0, 0
        self._changed, self._reassignment = Notifier(), EmergencyReassignment(view, rules, clock)
        self._placing = Placing(view, rules.stages)
        self._evaluating = Evaluating(view, rules, clock, steps, self._changed)
        self._assignments = Assignments(view, self._evaluating, self._changed)
        self._connectivity = ConnectivityCheck(view, asking, rules, clock)
        timer = RebalanceTimer(moves, rules.rebalance_s, clock)
        self._commits = CommitLoop(
            view, asking, rules, clock, timer=timer, connectivity=self._connectivity, changed=self._changed
        )

    @property
    def left(self) -> int | None:
        """Microbatches that the step under way still misses; None where another leads."""
        return self._assignments.left

    @property
    def progress(self) -> dict[str, Any]:
        """How far the step under way is, for status; empty where another leads."""
        commits = self._commits
        progress = {"step_phase": commits.phase, "attempt": commits.attempts, "last_failure": commits.last_failure}
        return progress if self._assignments.open else {}

    @property
    def unscored(self) -> int | None:
        """Microbatches of validation data that are still to be scored; None where another leads."""
        return self._assignments.unscored

    async def run(self, registration: Registration) -> None:
        """Lead whenever nobody else does, until cancelled.

        That this one leads may be news to it: it had asked to, and was cut off before it heard the answer.
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

    async def work(self, request: Request) -> Response:
        """A trainer's slot says what it has done and gets its next microbatch, as soon as there is one.

        Raises:
            Rejected: "not leading"; "stranger": it is no member under this incarnation.
        """
        trainer = self._view.trainers.get(str(field(request.note, "name")))
        proved = request.sender.address, request.note.get("incarnation")
        if trainer is None or (trainer.address, trainer.incarnation) != proved:
            raise Rejected("stranger", address=request.sender.address)
        if trainer.model != self._rules.digest:
            raise Rejected("another model", here=self._rules.digest, there=trainer.model)
        slot = f"{trainer.name}/{whole(request.note, 'slot')}"
        self._assignments.record_done(slot, field(request.note, "done"), self._rules.stages)
        while True:
            if not self._assignments.open:
                raise Rejected("not leading")
            if not self._view.is_here(trainer):  # while it waited: what it were given now nobody would take back
                raise Rejected("stranger", address=request.sender.address)
            given = self._assignments.take(slot)
            if given is not None:
                return Response(note=given)
            await self._news(self._assignments.late_in)

    async def place(self, request: Request) -> Response:
        """A newcomer asks which stage it is to hold.

        Raises:
            Rejected: "not leading"; "stranger": it has not announced in the directory that it comes.
        """
        if self._view.leader != self._me:
            raise Rejected("not leading")
        return await self._placing.place(request)

    async def _lead(self) -> None:
        """Take step after step, while the assignments are kept true to who is there.

        Raises:
            LeadershipLost: another trainer leads, or is to lead.
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
        """Whether this trainer knows the step that stands, or may say it: not where the directory has one that cannot
        be read, unless it is to go back to what was saved. Another trainer may remember the step.
        """
        return self._view.head is not None or not self._view.head_revision or self._rollback.resume

    async def _resign(self) -> NoReturn:
        """Raises: LeadershipLost: always."""
        with suppress(Conflict, CutOff):
            await self._view.directory.transact({LEADER: self._term}, {}, [LEADER])
        raise LeadershipLost("the directory's head cannot be read, and this trainer remembers no other")

    async def _tell_losses(self) -> None:
        """Say in the directory which stages are lost, until cancelled; before the first step none is.

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
        known = 0  # steps of which nobody has counted anything for who led before
        while True:
            head, revision = self._view.head, self._view.head_revision
            queue = self._assignments.turn_to(head, revision)
            after = await self._while_leading(self._led(head, revision, queue, known > self._rules.delayed))
            await self._decide(after, revision)
            known = known + 1 if after.step == head.step + 1 else 0

    async def _while_leading(self, work: Coroutine[Any, Any, Head]) -> Head:
        """Raises: LeadershipLost: somebody else leads."""
        try:
            async with self._view.while_holds(lambda: self._view.leader_revision == self._term):
                return await work
        except NoLongerValid as error:
            raise LeadershipLost("the directory names another leader, or none") from error
        finally:
            work.close()  # where it was never begun

    async def _first(self) -> Head:
        """Where a swarm begins: before the first step, or where a former one was saved."""
        return self._head_at(await self._rollback.needed()) if self._rollback.resume else self._head_at(None)

    async def _led(self, head: Head, revision: int, queue: WorkQueue, known: bool) -> Head:
        """The step taken, with the next begun meanwhile where it can be; or, if this cannot be, where all go back to.

        Args:
            known: what peers have counted is on the assignments.
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
        """The head that lets all begin there; None: before the first step."""
        if saved is None:
            return Head(self._rules.stages, self._rules.digest)
        name = round_text(self._next_name())
        return Head(
            self._rules.stages, self._rules.digest, saved.step, name, lineage=saved.lineage, basis=saved.lineage
        )

    def _next_name(self) -> RoundName:
        self._attempts += 1
        return self._term, self._attempts

    async def _news(self, seconds: float) -> None:
        """Wait until the queue has changed, so many seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(seconds) else seconds):
                await self._changed.wait()

    async def _decide(self, head: Head, revision: int) -> None:
        """Move the head, and wait until this process sees it.

        Raises:
            LeadershipLost: it was moved by another, or somebody else leads.
        """
        view = self._view
        await self._put(HEAD, head.entries(view.took), revision)
        await view.wait_for(lambda: view.head is not None and view.head_revision > revision)

    async def _write(self, key: str, record: Record, revision: int) -> None:
        """Write what only who leads may, under a key that is at this revision. Raises as `_put`."""
        await self._put(key, {key: record.pack()}, revision)

    async def _put(self, key: str, entries: Mapping[str, bytes], revision: int) -> None:
        """Put what only the leader may, where one of the keys is at this revision.

        Raises:
            LeadershipLost: it was written by another, or another trainer leads.
        """
        while True:
            try:
                await self._view.directory.transact({key: revision, LEADER: self._term}, entries)
                return
            except Conflict as error:
                found = error.found.get(key)
                if found is None or found.value != entries[key]:
                    raise LeadershipLost(f"another leader wrote {key!r}, or leads") from error
                return  # it had happened before the directory was cut off
            except CutOff:
                await self._clock.sleep(RETRY_S)
