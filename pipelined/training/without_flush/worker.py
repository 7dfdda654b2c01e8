"""The worker that trains without a flush: one coroutine runs a whole segment of steps, several of them at a time.

A `TrainWorker` does the work of each step. This worker finds the step of a microbatch, makes the right weights
available, and admits a step only when it is open.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pipelined.programs.gradient_sync import GradientSync
from pipelined.programs.instructions import Instruction
from pipelined.schedules import StageMap, Worker
from pipelined.training.prefetch import Origin, Prefetcher
from pipelined.training.without_flush.admission import Admission
from pipelined.training.without_flush.stage_updates import StageUpdates, SummedStep
from pipelined.training.without_flush.versioned_stage import StepStage, VersionedStage
from pipelined.training.worker import RankContext, TrainWorker
from transports import Message


class AsynchronousWorker(Worker):
    """One worker of one group in one segment.

    Args:
        context: the context of the rank.
        layout: the layout of the segment, with microbatches numbered through all steps.
        start: the first step of the segment.
        held: the one stage of this worker.
        admission: decides which steps are open.
        updates: the updates of that stage.
    """

    def __init__(
        self,
        context: RankContext,
        layout: StageMap,
        *,
        start: int,
        held: VersionedStage,
        admission: Admission,
        updates: StageUpdates,
    ):
        super().__init__(context.worker, layout)
        self._context, self._start, self._held, self._admission = context, start, held, admission
        self._each = len(context.plan.layout.microbatches[0])
        self._updates, self._accounts = updates, defaultdict[int, SummedStep](SummedStep)
        take = context.messages.receive
        self._mail = Mail(Prefetcher(context.actor, receive=take), Prefetcher(context.actor, receive=take))
        self._steps: dict[int, StepWorker] = {}
        self._left: Counter[int] = Counter()
        self._opened = 0
        self.open()

    def open(self) -> None:
        """Prepare every admitted step, so that its messages are requested early."""
        for step in range(self._opened, self._admission.opened):
            stages = {self._held.stage.index: StepStage(self._held, step * self._each)}
            self._left[step] = self._each
            self._steps[step] = StepWorker(replace(self._context, stages=stages), self._start + step, self._mail)
        self._opened = self._admission.opened

    async def close(self, step: int) -> SummedStep:
        """Wait until a step's gradients are computed and summed, and close it; returns its account."""
        account = self._accounts[step]
        await account.complete()
        account.losses = self._steps.pop(step).losses
        return self._accounts.pop(step)

    async def execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        """Execute one instruction with the weights of its microbatch."""
        step, inside = divmod(microbatch, self._each)
        if op == "F":
            await self._updates.before_forward(microbatch, self._accounts[step])
        await self._steps[step].execute(op, pipe, stage, inside)
        if op in "BW":
            await self._updates.after_backward(microbatch, self._accounts[step])
            self._left[step] -= 1  # backwards of an update come in any order, so the last is found by counting
            if not self._left[step]:
                self._accounts[step].done.set()

    async def enters(self, pipe: int) -> bool:
        step = self._taken["F", pipe, self._stage(pipe)] // self._each
        return await super().enters(pipe) and await self._admission.enters(step)

    async def drain(self) -> None:
        """Apply the updates that no microbatch has waited for."""
        await self._updates.drain()

    def arrived(self, op: str, pipe: int, stage: int, microbatch: int) -> bool:
        step, inside = divmod(microbatch, self._each)
        return step in self._steps and self._steps[step].arrived(op, pipe, stage, inside)

    async def any_arrival(self, choices: Sequence[tuple[str, int, int, int]]) -> None:
        asked = []
        for op, pipe, stage, microbatch in choices:
            step, inside = divmod(microbatch, self._each)
            origin = self._steps[step].origin(Instruction(op, pipe, stage, inside))
            asked.append(self._mail.asked(*origin))
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)


class Mail:
    """The messages of a segment: activations in their order and gradients in theirs, with no order between the two.

    Args:
        activations, gradients: the prefetchers of the two kinds.
    """

    def __init__(self, activations: Prefetcher, gradients: Prefetcher):
        self._of = {"activation": activations, "gradient": gradients}

    def expect(self, origins: Sequence[Origin]) -> None:
        """Request further messages, in the order in which each kind will be taken."""
        for kind, prefetcher in self._of.items():
            prefetcher.expect([origin for origin in origins if origin[1][0] == kind])

    async def take(self, peer: int, key: tuple[int | str, ...]) -> Message:
        return await self._of[str(key[0])].take(peer, key)

    def here(self, peer: int, key: tuple[int | str, ...]) -> bool:
        return self._of[str(key[0])].here(peer, key)

    def asked(self, peer: int, key: tuple[int | str, ...]) -> "asyncio.Task[Message]":
        return self._of[str(key[0])].asked(peer, key)


class StepWorker(TrainWorker):
    """The worker of one step; it takes its messages from the segment's mail."""

    def __init__(self, context: RankContext, step: int, mail: Mail):
        super().__init__(context, step, GradientSync(context.actor, (), _no_sum, (), ()))
        self._prefetcher = mail
        (place,) = self.layout.held_by(self.index)
        each = [Instruction(op, *place, number) for op in "FB" for number in self.layout.microbatches[place[0]]]
        mail.expect([origin for origin in map(self._origin, each) if origin])

    def origin(self, at: Instruction) -> Origin:
        """The sender and the key of an instruction's message."""
        origin = self._origin(at)
        assert origin is not None
        return origin


async def _no_sum(bucket: object) -> None:
    """Does nothing: gradients are summed for each update, not at the end of the step."""
