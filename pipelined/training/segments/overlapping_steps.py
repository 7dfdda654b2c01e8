"""A segment without a flush: its steps overlap, and each stage is updated while microbatches are under way.

One coroutine runs all steps. The worker of a step does its work; this module finds the step of a microbatch, makes the
right weights available, and admits a step only when it is open.

An update cannot wait for a whole step. The numbers on which all ranks agree, such as the global gradient norm, are
known only some steps later, so gradients cannot be clipped by it.

All ranks agree on the sums of a step when it is complete. Admission depends only on these sums, which are equal on all
ranks. So all ranks end at the same step after a stop request, although no rank ever waits for all others.
"""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pipelined.aio.tasks import Notifier
from pipelined.programs.instructions import Instruction
from pipelined.programs.prepare import Prepared
from pipelined.programs.staleness import steps_to_fill
from pipelined.schedules import Worker
from pipelined.schedules.parts.worker import InstructionKey
from pipelined.training.exchange.prefetch import MessageQueues
from pipelined.training.optimizer import OptimizerSettings
from pipelined.training.rank_context import RankContext
from pipelined.training.replay import Order, follow_steps
from pipelined.training.segments.segment import Segment
from pipelined.training.segments.stage_updates import NO_LISTENER, StageUpdates, SummedStep, UpdateListener
from pipelined.training.segments.versioned_stage import StepStage, VersionedStage
from pipelined.training.sums.gradient_sums import GradientSums
from pipelined.training.worker import TrainWorker
from transports import Message


class OverlappingSteps(Worker, Segment):
    """The segment of a schedule without a flush, and the worker that the schedule commands in it.

    Args:
        context: the context of the rank.
        held: the one stage of the rank, with the versions of its weights.
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
        held: VersionedStage,
        sums: GradientSums,
        settings: OptimizerSettings,
        *,
        steps: range,
        prepared: Prepared,
        orders: Mapping[int, Order],
        listener: UpdateListener = NO_LISTENER,
    ):
        shape = replace(context.plan.shape, steps=len(steps))
        super().__init__(context.worker, stage_map := prepared.schedule.stage_map(shape))
        self._context, self._held = context, held
        self._steps, self._each = steps, shape.microbatches
        self._schedule, self._orders = prepared.schedule, orders
        self._admission = StepAdmission(len(steps), steps_to_fill(shape))

        def rate(update: int) -> float | None:
            return settings.rate(steps.start + update * stage_map.updates.every // shape.microbatches)

        self._updates = StageUpdates(
            context=context, held=held, stage_map=stage_map, rate=rate, sums=sums, listener=listener
        )
        self._incoming = MessageQueues(context.actor, context.messages.receive)
        self._open: dict[int, TrainWorker] = {}
        self._accounts = defaultdict[int, SummedStep](SummedStep)
        self._left: Counter[int] = Counter()
        self._prepare(range(self._admission.opened))

    async def run(self) -> None:
        if self._orders:
            await follow_steps(self, self._orders, self._steps, self._each)
        else:
            await self._schedule.schedule(self)
        await self._updates.drain()

    async def admits(self, number: int) -> bool:
        return await self._admission.admits(number)

    async def complete(self, number: int) -> SummedStep:
        account = self._accounts[number]
        await account.complete()
        worker = self._open.pop(number)
        account.losses, account.count = worker.losses, worker.count
        return self._accounts.pop(number)

    async def update(self, rate: float | None, gradient_scale: float) -> None:
        """Nothing: the stage was updated while the schedule ran."""

    def record_agreed(self, number: int, stop: bool) -> None:
        before = self._admission.opened
        self._admission.record_agreed(number, stop)
        self._prepare(range(before, self._admission.opened))

    async def _execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        """Execute one instruction with the weights of its microbatch."""
        step, inside = divmod(microbatch, self._each)
        if op == "F":
            await self._updates.before_forward(microbatch, self._accounts[step])
        await self._open[step].do(op, pipe, stage, inside)
        if op in "BW":
            await self._updates.after_backward(microbatch, self._accounts[step])
            self._left[step] -= 1  # backwards of an update come in any order, so the last is found by counting
            if not self._left[step]:
                self._accounts[step].done.set()

    async def _remains(self, op: str, pipe: int, stage: int | None = None) -> bool:
        stage = self._stage(pipe) if stage is None else stage
        step = len(self._taken[op, pipe, stage]) // self._each
        return await super()._remains(op, pipe, stage) and (op != "F" or await self._admission.admits(step))

    def _arrived(self, key: InstructionKey) -> bool:
        step, inside = divmod(key[-1], self._each)
        return step in self._open and self._open[step].here(*key[:-1], inside)

    async def _wait_for_arrival(self, choices: Sequence[InstructionKey], patience: float) -> None:
        if patience < math.inf:
            return
        requests = list[asyncio.Task[Message]]()
        for op, pipe, stage, microbatch in choices:
            step, inside = divmod(microbatch, self._each)
            requests += self._open[step].pending(Instruction(op, pipe, stage, inside))
        await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)

    def _prepare(self, numbers: range) -> None:
        """Prepare these steps, so that their messages are requested early."""
        for number in numbers:
            stages = {self._held.stage.index: StepStage(self._held, number * self._each)}
            context = replace(self._context, stages=stages)
            self._left[number] = self._each
            self._open[number] = worker = TrainWorker(context, self._steps[number], messages=self._incoming)
            ((pipe, stage),) = worker.stage_map.held_by(worker.index)
            microbatches = worker.stage_map.microbatches[pipe]
            program = [Instruction(op, pipe, stage, microbatch) for op in "FB" for microbatch in microbatches]
            self._incoming.expect(origin for one in program for origin in worker.origins(one).values())


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
