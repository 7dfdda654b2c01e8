"""A segment without a flush: its steps overlap, and each stage is updated while microbatches are under way.

One coroutine runs all steps. The schedule commands one worker, which finds the step of a microbatch, makes the right
weights available, and gives the instruction to the worker of that step. A step must be admitted before it begins.

An update cannot wait for a whole step. The numbers on which all ranks agree, such as the global gradient norm, are
known only some steps later, so gradients cannot be clipped by it.

All ranks agree on the sums of a step when it is complete. Admission depends only on these sums, which are equal on all
ranks. So all ranks end at the same step after a stop request, although no rank ever waits for all others.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipelined.aio.tasks import Notifier
from pipelined.programs.instructions import Instruction
from pipelined.programs.prepare import Prepared
from pipelined.programs.staleness import steps_to_fill
from pipelined.schedules import InstructionKey, StageMap, Worker
from pipelined.training.exchange.prefetch import MessageQueues
from pipelined.training.job.optimizer_settings import OptimizerSettings
from pipelined.training.job.rank_context import RankContext
from pipelined.training.segments.replay import Order, follow_steps
from pipelined.training.segments.segment import Segment
from pipelined.training.segments.stage_updates import NO_LISTENER, StageUpdates, SummedStep, UpdateListener
from pipelined.training.segments.versioned_stage import StepStage, VersionedStage
from pipelined.training.segments.worker import TrainWorker
from pipelined.training.sums.gradient_sums import GradientSums
from transports import Message


class OverlappingSteps(Segment):
    """The segment of a schedule without a flush.

    Args:
        context: the context of the rank.
        stage: the one stage of the rank, with the versions of its weights.
        sums: sums a bucket's gradient over its holders.
        settings: of the optimizer, gives the learning rate of each step.
        steps: the steps, the same on all ranks.
        prepared: the rank's schedule.
        orders: the instructions of all steps, under the first one, to follow instead of the schedule; empty: none.
        listener: of the updates.
    """

    def __init__(
        self,
        context: RankContext,
        stage: VersionedStage,
        sums: GradientSums,
        settings: OptimizerSettings,
        *,
        steps: range,
        prepared: Prepared,
        orders: Mapping[int, Order],
        listener: UpdateListener = NO_LISTENER,
    ):
        shape = replace(context.plan.shape, steps=len(steps))
        stage_map = prepared.schedule.stage_map(shape)

        def rate(update: int) -> float | None:
            return settings.rate(steps.start + update * stage_map.updates.every // shape.microbatches)

        self._context, self._stage = context, stage
        self._steps, self._microbatches = steps, shape.microbatches
        self._schedule, self._orders = prepared.schedule, orders
        self._admission = StepAdmission(len(steps), steps_to_fill(shape))
        self._updates = StageUpdates(
            context=context, stage=stage, stage_map=stage_map, rate=rate, sums=sums, listener=listener
        )
        self._incoming = MessageQueues(context.actor, context.messages.receive)
        self._open: dict[int, AdmittedStep] = {}
        self._worker = OverlappingWorker(
            context.worker, stage_map, self._open, self._updates, self._admission, microbatches=shape.microbatches
        )
        self._prepare(range(self._admission.opened))

    async def run(self) -> None:
        if self._orders:
            await follow_steps(self._worker, self._orders, self._steps, self._microbatches)
        else:
            await self._schedule.schedule(self._worker)
        await self._updates.drain()

    async def admits(self, index: int) -> bool:
        return await self._admission.admits(index)

    async def wait_for_sums(self, index: int) -> SummedStep:
        step = self._open[index]
        await step.account.complete()
        step.account.losses, step.account.count = step.worker.losses, step.worker.count
        del self._open[index]
        return step.account

    async def update(self, rate: float | None, gradient_scale: float) -> None:
        """Nothing: the stage was updated while the schedule ran."""

    def record_agreed(self, index: int, stop: bool) -> None:
        before = self._admission.opened
        self._admission.record_agreed(index, stop)
        self._prepare(range(before, self._admission.opened))

    def _prepare(self, numbers: range) -> None:
        """Prepare these steps, so that their messages are requested early."""
        for index in numbers:
            stages = {self._stage.index: StepStage(self._stage, index * self._microbatches)}
            context = replace(self._context, stages=stages)
            worker = TrainWorker(context, self._steps[index], messages=self._incoming)
            self._open[index] = AdmittedStep(worker, self._microbatches)
            ((pipe, stage),) = worker.stage_map.held_by(worker.index)
            microbatches = worker.stage_map.microbatches[pipe]
            program = [Instruction(op, pipe, stage, microbatch) for op in "FB" for microbatch in microbatches]
            self._incoming.expect(origin for instruction in program for origin in worker.origins(instruction).values())


@dataclass(eq=False)
class AdmittedStep:
    """A step that is admitted, and not yet complete.

    Args:
        worker: does the step's instructions.
        backwards_left: backwards that have not ended. Those of an update come in any order, so the last one is found
            by counting.
        account: of the step.
    """

    worker: TrainWorker
    backwards_left: int
    account: SummedStep = field(default_factory=SummedStep)

    def end_backward(self) -> None:
        self.backwards_left -= 1
        if not self.backwards_left:
            self.account.done.set()


class OverlappingWorker(Worker):
    """The worker that a schedule without a flush commands; it gives each instruction to the worker of its step.

    Args:
        index, stage_map: see `Worker`; the microbatches of the stage map are those of all steps.
        open_steps: by number, from 0; the segment adds and removes them.
        updates: of the rank's stage.
        admission: of the steps.
        microbatches: of a step.
    """

    def __init__(
        self,
        index: int,
        stage_map: StageMap,
        open_steps: Mapping[int, AdmittedStep],
        updates: StageUpdates,
        admission: "StepAdmission",
        *,
        microbatches: int,
    ):
        super().__init__(index, stage_map)
        self._open, self._microbatches = open_steps, microbatches
        self._updates, self._admission = updates, admission

    async def _execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        """Execute one instruction with the weights of its microbatch."""
        index, within_step = divmod(microbatch, self._microbatches)
        step = self._open[index]
        if op == "F":
            await self._updates.before_forward(microbatch, step.account)
        await step.worker.do(op, pipe, stage, within_step)
        if op in "BW":
            await self._updates.after_backward(microbatch, step.account)
            step.end_backward()

    async def _remains(self, op: str, pipe: int, stage: int | None = None) -> bool:
        if not await super()._remains(op, pipe, stage):
            return False
        begun = self._taken_microbatches[op, pipe, self._stage_of(pipe) if stage is None else stage]
        return op != "F" or await self._admission.admits(len(begun) // self._microbatches)

    def _has_arrived(self, key: InstructionKey) -> bool:
        op, pipe, stage, microbatch = key
        index, within_step = divmod(microbatch, self._microbatches)
        return index in self._open and self._open[index].worker.here(op, pipe, stage, within_step)

    async def _wait_for_arrival(self, choices: Sequence[InstructionKey], patience: float) -> None:
        if patience < math.inf:
            return
        requests = list[asyncio.Task[Message]]()
        for op, pipe, stage, microbatch in choices:
            index, within_step = divmod(microbatch, self._microbatches)
            requests += self._open[index].worker.requests_of(Instruction(op, pipe, stage, within_step))
        await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)


class StepAdmission:
    """The steps of one segment, counted from 0.

    Args:
        steps: the most steps of the segment.
        ahead: steps that may be under way beyond those that are agreed on.

    Attributes:
        opened: steps admitted so far.
    """

    def __init__(self, steps: int, ahead: int):
        self._steps = steps
        self._ahead = ahead
        self._changed = Notifier()
        self.opened = min(steps, ahead)
        self._over = steps <= ahead

    def record_agreed(self, step: int, stop: bool) -> None:
        """Record that all ranks have agreed on this step, the next in order; stop: any rank received a stop request."""
        self._over = self._over or stop
        if not self._over:
            self.opened = min(self._steps, step + 1 + self._ahead)
            self._over = self.opened == self._steps
        self._changed.notify_all()

    async def admits(self, step: int) -> bool:
        """Whether a step is admitted; waits until this is decided."""
        while step >= self.opened and not self._over:
            await self._changed.wait()
        return step < self.opened
