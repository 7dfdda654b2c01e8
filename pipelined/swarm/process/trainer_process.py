"""A trainer's process, from its parts to its end: what it starts, what it prints, and when it ends.

A wait is printed once it has lasted MOMENT_S, as most are shorter; then its end is printed, too.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass

from pipelined.aio.tasks import beside
from pipelined.membership.connection import LocalMember
from pipelined.membership.messaging.messages import handle_requests
from pipelined.membership.registration import Registration, run_under_leases
from pipelined.process.reporting.progress import EVERY_S, MOMENT_S, Progress, Say
from pipelined.swarm.leader.assignments import evaluation_due
from pipelined.swarm.leader.leader import Leader
from pipelined.swarm.leader.reassignment import Rebalance, Rollback, rebalance
from pipelined.swarm.process.session import raise_when_failed, unreadable_head
from pipelined.swarm.protocol.status import Status, StatusReply, traffic_of
from pipelined.swarm.protocol.work import GetStage, GetWork
from pipelined.swarm.records.committed_steps import CommittedSteps, StepEvent
from pipelined.swarm.records.members import TRAINERS, TrainerRecord
from pipelined.swarm.records.steps import HEAD
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from pipelined.swarm.settings import TrainerSettings
from pipelined.swarm.status.reader import waits_for
from pipelined.swarm.trainer.trainer import Data, SwarmTrainer
from transports import Nursery
from transports.rpc import Party


class TrainerProcess:
    """A trainer with all its parts; it leads the swarm while no other trainer leads.

    Args:
        local: this process; its name is unique among the trainers.
        data: finds a microbatch by its name.
        slots: microbatches in progress at once.
        resume: whether to lead on from what any run saved; else only from what this run saved, if a stage is lost.
        steps: number of steps after which the run is over; None: never.
    """

    def __init__(
        self,
        local: LocalMember,
        data: Data,
        rules: Rules,
        *,
        slots: int = TrainerSettings.slots,
        steps: int | None = None,
        balance: Rebalance | None = None,
        resume: bool = False,
    ):
        self.name = local.name
        self.rules = rules
        self._local = local
        self._steps = steps
        self._endpoint = local.endpoint
        self.view = SwarmView(local.directory, local.clock)
        rollback = Rollback(self.view, rules, local.clock, resume)
        self.leader = Leader(local, self.view, rules, rebalance=balance or rebalance, rollback=rollback, steps=steps)
        self.trainer = SwarmTrainer(local, self.view, data, rules, slots)

    async def run(self) -> None:
        """Train until the last step is committed, or cancelled.

        Raises:
            OtherModel: the swarm trains another model. Else the first error of any of its parts.
        """
        handle_requests(self._endpoint, GetWork, self.leader.assign_work)
        handle_requests(self._endpoint, GetStage, self.leader.assign_stage)
        handle_requests(self._endpoint, Status, self._status)
        registrations = run_under_leases(self._local, TRAINERS, self.rules.lease_s, self._run_registered)
        await beside(self._wait_over(), self.view.follow(), registrations, raise_when_failed(self._endpoint))

    @property
    def is_over(self) -> bool:
        """Whether the last step is committed, and evaluated if an evaluation is due."""
        head = self.view.head
        return head is not None and self._steps is not None and head.step >= self._steps and not self.is_to_evaluate()

    def committed_steps(self) -> CommittedSteps:
        """The steps of this training, as this process sees them."""
        return CommittedSteps(self.view, self.rules, self._local.clock, self._steps)

    def is_to_evaluate(self) -> bool:
        """Whether the parameters of the directory's head must still be measured on validation data."""
        head = self.view.head
        return head is not None and evaluation_due(head, self.view.evaluation, self.rules, self._steps)

    async def _status(self, request: Status, sender: Party) -> StatusReply:
        report = self.trainer.report(self.leader.report)
        traffic = traffic_of(self._endpoint)
        return StatusReply(self.view.cut_off, traffic, trainer=report, events=request.recent_events)

    async def _wait_over(self) -> None:
        await self.view.wait_for_model(self.rules.digest)
        await self.view.wait_for(lambda: self.is_over)

    async def _run_registered(self, registration: Registration) -> None:
        """Lead and train under one lease."""
        name, address, incarnation = self.name, self._endpoint.address, registration.incarnation
        await registration.put(TrainerRecord(name, address, incarnation, self.rules.digest))
        async with Nursery() as tasks:
            tasks.create_task(self.leader.run(registration))
            tasks.create_task(self.trainer.run(incarnation))


async def run_trainer(
    process: TrainerProcess, stop: asyncio.Event, on_step: Callable[[StepEvent], None], say: Say
) -> bool:
    """Run a trainer until the last step is committed, and evaluated if that is due, or until `stop` is set.

    Args:
        on_step: called with each commit, rollback and evaluation, in order.
        say: prints what the swarm waits for.
    Returns: whether the last step is committed and evaluated.
    Raises: as `TrainerProcess.run`.
    """

    async def follow() -> None:
        async for event in process.committed_steps().follow():
            on_step(event)

    async with Nursery() as tasks:
        follow_task = tasks.create_task(follow())
        run_task = tasks.create_task(process.run())
        watch_tasks = [tasks.create_task(_cancel_at(stop, run_task)), tasks.create_task(WaitLog(process, say).follow())]
        await asyncio.wait([run_task])
        if not process.is_over:
            follow_task.cancel()
        for task in watch_tasks:
            task.cancel()
    return process.is_over


async def _cancel_at(stop: asyncio.Event, task: "asyncio.Task[None]") -> None:
    await stop.wait()
    task.cancel()


@dataclass(frozen=True)
class WaitLog:
    """What a swarm waits for, as one trainer sees it."""

    process: TrainerProcess
    say: Say

    async def follow(self) -> None:
        """Log every wait that lasts, the progress of an evaluation, and the end of the wait, until cancelled."""
        last_text = ""
        progress = self._progress()
        while True:
            text = self._wait_text()
            if text == last_text:
                await self.process.view.next_change(EVERY_S if text else math.inf)
                self._log_scores(progress)
            elif not text or await self._outlasts_moment(text):
                self.say(f"{self.process.name}: {text or 'training continues'}")
                last_text = text
                progress = self._progress()

    def _progress(self) -> Progress:
        return Progress(asyncio.get_running_loop().time, self.say)

    def _log_scores(self, progress: Progress) -> None:
        held_out = self.process.rules.eval_batch
        if unscored := self.process.leader.unscored:
            progress.show(f"{self.process.name}: {held_out - unscored} of {held_out} microbatches evaluated")

    async def _outlasts_moment(self, wait: str) -> bool:
        try:
            async with asyncio.timeout(MOMENT_S):
                await self.process.view.wait_for(lambda: self._wait_text() != wait)
        except TimeoutError:
            return True
        return False

    def _wait_text(self) -> str:
        view = self.process.view
        if view.cut_off:
            return "the directory does not reply; no step is committed until it replies"
        if not view.revision:
            return "waits for the directory"
        if view.head is None and HEAD in view.unreadable:
            return unreadable_head(view.unreadable[HEAD])
        is_evaluating = view.head is not None and self.process.is_to_evaluate()
        reason = waits_for(view, evaluations=f"{self.process.rules.eval_batch:,}" if is_evaluating else "")
        return f"waits for {reason}" if reason else ""
