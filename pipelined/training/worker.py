"""The training worker: it executes the instructions of a schedule with torch and a transport.

One instance is one worker in one step. Each instruction waits for its message, computes on the device, and sends the
result to the neighbour; only the schedule decides the order.
"""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pipelined.actors.messages import Activation, Address, Gradient
from pipelined.aio.nursery import Nursery
from pipelined.errors import UsageError
from pipelined.programs.gradient_sync import GradientSync
from pipelined.programs.instructions import OPS, Instruction
from pipelined.programs.pricing.virtual_worker import DueMessages
from pipelined.random.keyed_random import KeyedRandom
from pipelined.schedules import Worker
from pipelined.schedules.worker import At
from pipelined.training.exchange.prefetch import MessageSource, Origin, Prefetcher
from pipelined.training.exchange.stream import Parcel
from pipelined.training.rank_context import RankContext
from transports import Message, TransportError

AHEAD = 2
"""Instructions that wait in the queue of the device after the one that it computes."""

Given = list[Message | None]
"""The message that an instruction needs, until it begins: nothing else may keep the message's memory."""


class StageFailed(Exception):
    """An error inside one instruction; the message names rank, stage and microbatch."""


class TrainWorker(Worker):
    """One worker of one group in one step.

    With a parent for its instructions a verb returns when its work is queued: the device goes from one instruction to
    the next without waiting for the event loop. Results and messages follow the end of the work.

    Args:
        context: the context of the rank.
        step: the step, from 0.
        sums: starts gradient sums; None: nothing is summed here.
        program: this worker's instructions as proved, so that it can request messages early, and a dynamic schedule
            waits briefly for messages that are due; empty if they are not known beforehand.
        messages: where it takes its messages from; None: from a `Prefetcher` of its own.
        instructions: the parent of queued instructions; None: a verb returns at the end of its instruction.
        loss_scale: by which the losses of the step are multiplied.

    Attributes:
        losses: mean (or summed) loss by global microbatch, for microbatches that have their last stage here.
        count: the counts of these losses together; a mean counts 1.
    """

    def __init__(
        self,
        context: RankContext,
        step: int,
        sums: GradientSync[Any] | None = None,
        program: Sequence[Instruction] = (),
        *,
        messages: MessageSource | None = None,
        instructions: Nursery | None = None,
        loss_scale: float = 1.0,
    ):
        super().__init__(context.worker, context.plan.layout)
        self._scale = loss_scale / context.plan.microbatches_an_update
        self.context, self.step, self._sums = context, step, sums
        self.losses, self.count = dict[int, float](), 0.0
        self._due = DueMessages(program)
        origins = filter(None, map(self.origin, program))
        self._messages = messages or Prefetcher(context.actor, origins, receive=context.messages.receive)
        self._instructions, self._room = instructions, asyncio.Semaphore(1 + AHEAD)
        self._last: asyncio.Task[None] | None = None
        self._sends = set[asyncio.Task[None]]()

    async def execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        """Wait for the instruction's message, compute, send the result, and start the gradient sums that are due."""
        at = Instruction(op, pipe, stage, microbatch)
        if self._instructions is None:
            await self._run(at, [await self._message(at)])
        else:
            await self._room.acquire()
            given = [await self._message(at)]
            self._last = self._instructions.create_task(self._queued(at, given, self._last))

    async def _queued(self, at: Instruction, given: Given, before: "asyncio.Task[None] | None") -> None:
        """An instruction of the queue, after the one before it."""
        if not at.computes and before is not None:
            await asyncio.wait([before])
        await self._run(at, given)
        self._room.release()

    async def _run(self, at: Instruction, given: Given) -> None:
        with self._name_in_errors(at):
            if at.op == "F":
                await self._forward(at, given)
            elif at.op == "W":
                await self._compute(at, lambda: self.context.stages[at.stage].backward_weight((at.pipe, at.microbatch)))
            elif at.computes:
                await self._backward(at, given)
        if self._sums is not None:
            self._sums.ended(at)

    async def sent(self) -> None:
        """Wait until all that was sent so far is with its receivers, and so among the bytes that this rank has sent."""
        if self._sends:
            await asyncio.wait(self._sends)

    def arrived(self, at: At) -> bool:
        """Whether an instruction's message is on this rank, or the instruction needs no message.

        True as well where every order must be the same on all members: a schedule then takes that of its proof.
        """
        if self.context.in_order:
            return True
        return (origin := self.origin(Instruction(*at))) is None or self._messages.arrived(*origin)

    async def arrival(self, choices: Sequence[At], patience: float) -> None:
        """Wait for a due message while the device is busy, and then for a share of the last weight half here."""
        if patience == math.inf:
            return await super().arrival(choices, patience)
        due = (one for at in choices if self._due.covers(one := Instruction(*at), self.halves))
        known = [known for at in due if (origin := self.origin(at)) and (known := self._messages.requested(*origin))]
        if self._last is not None:
            await asyncio.wait([*known, self._last], return_when=asyncio.FIRST_COMPLETED)
        if known:
            seconds = patience * self.context.executor.took.get(OPS["W"], 0.0)
            await asyncio.wait(known, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def _forward(self, at: Instruction, given: Given) -> None:
        held, random = self.context.stages[at.stage], self._random(at)

        def work() -> Any:
            x = given.pop() or self.context.feed.inputs(self.step, self._number(at))
            return held.forward((at.pipe, at.microbatch), x, random, self._targets(at))

        output = await self._compute(at, work)
        if at.stage == self.layout.depth - 1:
            self._score(self._number(at), *output.tensors)
        else:
            self._send(at, Activation(self.step, at.pipe, at.stage + 1, at.microbatch), output)

    def _score(self, number: int, total: float, count: float | None = None) -> None:
        """Keep the loss of a microbatch.

        Raises:
            UsageError: it is a sum, and a stage is updated before all counts of the step are known.
        """
        if count is not None and not self.context.plan.flushes:
            fact = f"{self.context.plan.schedule} updates a stage before all counts of a step are known"
            raise UsageError(f"{fact}; let the loss return the mean, or choose a schedule with a flush")
        self.losses[number] = float(total)
        self.count += 1.0 if count is None else count

    async def _backward(self, at: Instruction, given: Given) -> None:
        """A whole backward or its input half; sends the gradient at once, even if other work is pending here."""
        held, key = self.context.stages[at.stage], (at.pipe, at.microbatch)
        random = self._random(at)
        half = held.backward if at.op == "B" else held.backward_input
        back = await self._compute(at, lambda: half(key, given.pop(), self._scale, random, self._targets(at)))
        if at.stage > 0 and back is not None:
            self._send(at, Gradient(self.step, at.pipe, at.stage - 1, at.microbatch), back)

    async def _message(self, at: Instruction) -> Message | None:
        """The message that an instruction needs; None if it needs none."""
        if (origin := self.origin(at)) is None:
            return None
        with self._name_in_errors(at), self.context.tracer.span("receive", str(origin[1][0]), **self._span_fields(at)):
            return await self._messages.take(*origin)

    async def _compute(self, at: Instruction, work: Callable[[], Any]) -> Any:
        name, place = OPS[at.op], (self.step, at.stage, at.microbatch, at.pipe)
        result, start, end = await self.context.compute(name, work, self._is_awaited(at))
        self.context.tracer.record(name.partition("_")[0], name, start, end, place)
        return result

    def _is_awaited(self, at: Instruction) -> bool:
        """Whether another rank waits for the result of an instruction, or a gradient sum may start at its end."""
        if at.op == "F":
            return at.stage < self.layout.depth - 1
        sends = at.op in "BI" and at.stage > 0
        return sends or (self._sums is not None and self._sums.left(at.stage) <= 1 + AHEAD)

    def _send(self, at: Instruction, address: Address, parcel: Parcel) -> None:
        async def send() -> None:
            with self.context.tracer.span("send", address.kind, **self._span_fields(at)):
                await self.context.messages.send(peer, address.key, *parcel.tensors, note=parcel.note)

        peer = self.context.holder(address.pipe, address.stage)
        sending = self.context.actor.start(send())
        self._sends.add(sending)
        sending.add_done_callback(self._sends.discard)

    def origin(self, at: Instruction) -> Origin | None:
        """The sender and the key of an instruction's message; None if it needs no message."""
        holder = self.context.holder
        if at.op == "F" and at.stage > 0:
            return holder(at.pipe, at.stage - 1), Activation(self.step, at.pipe, at.stage, at.microbatch).key
        if at.op in "BI" and at.stage < self.layout.depth - 1:
            return holder(at.pipe, at.stage + 1), Gradient(self.step, at.pipe, at.stage, at.microbatch).key
        return None

    def _span_fields(self, at: Instruction) -> dict[str, int]:
        return {"step": self.step, "stage": at.stage, "microbatch": at.microbatch, "pipe": at.pipe}

    def _number(self, at: Instruction) -> int:
        return self.context.plan.global_microbatch(self.context.group, at.microbatch)

    def _random(self, at: Instruction) -> KeyedRandom:
        return KeyedRandom(self.context.seed, self.step, self._number(at))

    def _targets(self, at: Instruction) -> Any:
        """The targets of the last stage; None on other stages."""
        last = at.stage == self.layout.depth - 1
        return self.context.feed.targets(self.step, self._number(at)) if last else None

    @contextmanager
    def _name_in_errors(self, at: Instruction) -> Iterator[None]:
        """Add rank, stage, shard and microbatch to an instruction's error; a transport's errors name their rank."""
        try:
            yield
        except (TransportError, UsageError):
            raise
        except Exception as error:
            where = f"rank {self.context.actor.rank}, step {self.step}: {OPS[at.op]} of microbatch {at.microbatch}"
            shard = f", shard {self.context.member} of {shards}" if (shards := self.context.plan.tensor) > 1 else ""
            raise StageFailed(f"{where} through stage {at.stage} (pipe {at.pipe}{shard}) failed: {error!r}") from error
