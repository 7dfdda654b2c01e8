"""The training worker: it executes the instructions of a schedule with torch and a transport.

One instance is one worker in one step. Each instruction waits for its message, computes on the device, and sends the
result to the neighbour; only the schedule decides the order.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from pipelined.actors.device.work import DeviceWork
from pipelined.actors.messages import ACTIVATION, GRADIENT, Activation, Address, Gradient
from pipelined.errors import OutOfMemory, UsageError, ran_out_of_memory
from pipelined.programs.due_messages import DueMessages
from pipelined.programs.gradient_sync import GradientSync
from pipelined.programs.instructions import OPS, Instruction
from pipelined.random.keyed_random import KeyedRandom
from pipelined.schedules import Worker
from pipelined.schedules.parts.worker import InstructionKey
from pipelined.training.exchange.prefetch import MessageSource, Origin, Prefetcher
from pipelined.training.exchange.skips import key_between
from pipelined.training.exchange.stream import Parcel
from pipelined.training.instruction_queue import InstructionQueue
from pipelined.training.rank_context import RankContext
from transports import Message, Nursery, TransportError

T = TypeVar("T")
NeededMessage = list[Message | None]
"""The message that an instruction needs, until it begins: nothing else may keep the message's memory."""


class StageFailed(Exception):
    """An error inside one instruction; the message names rank, stage and microbatch."""


class TrainWorker(Worker):
    """One worker of one group in one step.

    With a parent for its instructions a verb returns when its work is queued: the device goes from one instruction to
    the next without waiting for the event loop. Results and messages follow the end of the work. The device computes in
    the order of the queue, so what is alive at the same time is as proved, however much is queued.

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
        super().__init__(context.worker, context.plan.stage_map)
        self._scale = loss_scale / context.plan.microbatches_an_update
        self.context, self.step = context, step
        self.losses, self.count = dict[int, float](), 0.0
        self._due = DueMessages(program)
        origins = [origin for at in program for origin in self.origins(at).values()]
        self._messages = messages or Prefetcher(context.actor, origins, receive=context.messages.receive)
        self._instructions = instructions
        self._queue = InstructionQueue(None if sums is None else sums.ended)
        self._gradients = Counter(at.stage for at in program if at.op in "BW")
        self._sends = set[asyncio.Task[None]]()

    async def _execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        """Wait for the instruction's message, compute, send the result, and start the gradient sums that are due."""
        at = Instruction(op, pipe, stage, microbatch)
        self._gradients[stage] -= op in "BW"
        origins = self.origins(at)
        bound = self._queue.room if at.op == "W" or origins else self._queue.local
        await bound.acquire()
        given = [await self._message(at, origins) if origins else None]
        self._queue.add(at, bound)
        if not at.computes:
            return
        work, is_awaited = self._work(at, given), self._is_awaited(at)
        if self._instructions is None:
            with _ErrorsOf(self, at):
                ended = await self.context.compute(OPS[op], work, is_awaited)
            self._ended(at, *ended)
        else:
            piece = DeviceWork(OPS[op], partial(self._named, at, work), is_awaited)
            self.context.executor.begin(self._instructions, piece, partial(self._ended, at))

    def _ended(self, at: Instruction, result: Any, start: float, end: float) -> None:
        """The first computation of the queue has ended."""
        with _ErrorsOf(self, at):
            self._computed(at, result, start, end)
        self._queue.end_first()

    async def sent(self) -> None:
        """Wait until all that was sent so far is with its receivers, and so among the bytes that this rank has sent."""
        if self._sends:
            await asyncio.wait(self._sends)

    def _arrived(self, at: InstructionKey) -> bool:
        """Whether an instruction's message is on this rank, or the instruction needs no message.

        In a team every member must run the same order. There this is always True, and the schedule follows its proof.
        """
        if self.context.in_order:
            return True
        return all(self._messages.arrived(*origin) for origin in self.origins(Instruction(*at)).values())

    async def _arrival(self, choices: Sequence[InstructionKey], patience: float) -> None:
        """Wait for a due message while the device is busy, and then for a share of the last weight half here."""
        if patience == math.inf:
            return await super()._arrival(choices, patience)
        due = (one for at in choices if self._due.covers(one := Instruction(*at), self._weight_halves))
        known = [request for at in due for request in self.pending(at)]
        if self._queue.waiting:
            waits: list[asyncio.Future[Any]] = [*known, self._queue.emptied()]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if known:
            seconds = patience * self.context.executor.took.get(OPS["W"], 0.0)
            await asyncio.wait(known, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def _work(self, at: Instruction, given: NeededMessage) -> Callable[[], Any]:
        """What the device does for an instruction."""
        held, key, random = self.context.stages[at.stage], (at.pipe, at.microbatch), self._random(at)

        def forward() -> Any:
            x = given.pop() or self.context.feed.inputs(self.step, self._number(at))
            return held.forward(key, x, random, self._targets(at))

        def backward() -> Any:
            half = held.backward if at.op == "B" else held.backward_input
            targets = self._targets(at) if self.context.recompute else None
            return half(key, given.pop(), self._scale, random, targets)

        if at.op == "W":
            return partial(held.backward_weight, key)
        return forward if at.op == "F" else backward

    def _named(self, at: Instruction, work: Callable[[], T]) -> T:
        with _ErrorsOf(self, at):
            return work()

    def _computed(self, at: Instruction, result: Any, start: float, end: float) -> None:
        """Record a computation, and send its result at once, even if other work is pending here."""
        name = OPS[at.op]
        self.context.tracer.record(
            name.partition("_")[0], name, start, end, (self.step, at.stage, at.microbatch, at.pipe)
        )
        if at.op == "F" and at.stage == self.stage_map.depth - 1:
            self._score(self._number(at), *result.tensors)
        elif at.op == "F":
            for reader, parcel in self.context.skips.split_activations(at.stage, result).items():
                self._send(at, Activation(self.step, at.pipe, reader, at.microbatch), parcel)
        elif at.op in "BI" and at.stage > 0 and result is not None:
            for giver, parcel in self.context.skips.split_gradients(at.stage, result).items():
                self._send(at, Gradient(self.step, at.pipe, giver, at.microbatch), parcel)

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

    async def _message(self, at: Instruction, origins: Mapping[int, Origin]) -> Message:
        """The message that an instruction needs, joined if it comes from several stages."""
        kind, skips = ACTIVATION if at.op == "F" else GRADIENT, self.context.skips
        with _ErrorsOf(self, at), self.context.tracer.span("receive", kind, **self._span_fields(at)):
            messages = {stage: await self._messages.take(*origin) for stage, origin in origins.items()}
            join = skips.join_activations if at.op == "F" else skips.join_gradients
            return join(at.stage, messages)

    def _is_awaited(self, at: Instruction) -> bool:
        """Whether another rank waits for the result of an instruction, or a gradient sum may start at its end."""
        if at.op == "F":
            return at.stage < self.stage_map.depth - 1
        sends, last = at.op in "BI" and at.stage > 0, at.op in "BW" and not self._gradients[at.stage]
        return sends or last

    def _send(self, at: Instruction, address: Address, parcel: Parcel) -> None:
        async def send() -> None:
            with self.context.tracer.span("send", address.kind, **self._span_fields(at)):
                await self.context.messages.send(peer, key, *parcel.tensors, note=parcel.note)

        key = key_between(at.stage, address)
        peer = self.context.holder(address.pipe, address.stage)
        sending = self.context.actor.start(send())
        self._sends.add(sending)
        sending.add_done_callback(self._sends.discard)

    def origins(self, at: Instruction) -> dict[int, Origin]:
        """The sender and the key of each message that an instruction needs, by the stage that it comes from."""
        receives = at.op in "BI" and at.stage < self.stage_map.depth - 1
        if not receives and (at.op != "F" or at.stage == 0):
            return {}
        where = self.step, at.pipe, at.stage, at.microbatch
        address: Address = Gradient(*where) if receives else Activation(*where)
        others = self.context.skips.readers(at.stage) if receives else self.context.skips.givers(at.stage)
        stages = [at.stage + 1 if receives else at.stage - 1, *others]
        return {stage: (self.context.holder(at.pipe, stage), key_between(stage, address)) for stage in stages}

    def pending(self, at: Instruction) -> list[asyncio.Task[Message]]:
        """The requests of those messages that an instruction waits for; the caller must not cancel them."""
        every = (self._messages.requested(*origin) for origin in self.origins(at).values())
        requests = [request for request in every if request]
        return [request for request in requests if not request.done()] or requests

    def _span_fields(self, at: Instruction) -> dict[str, int]:
        return {"step": self.step, "stage": at.stage, "microbatch": at.microbatch, "pipe": at.pipe}

    def _number(self, at: Instruction) -> int:
        return self.context.plan.global_microbatch(self.context.group, at.microbatch)

    def _random(self, at: Instruction) -> KeyedRandom:
        return KeyedRandom(self.context.seed, self.step, self._number(at))

    def _targets(self, at: Instruction) -> Any:
        """The targets of the last stage; None on other stages."""
        last = at.stage == self.stage_map.depth - 1
        return self.context.feed.targets(self.step, self._number(at)) if last else None

    def named(self, error: Exception, at: Instruction) -> Exception:
        """An instruction's error with rank, stage, member and microbatch; a transport's own name their rank."""
        if isinstance(error, TransportError | UsageError) and not isinstance(error, OutOfMemory):
            return error
        where = f"rank {self.context.actor.rank}, step {self.step}: {OPS[at.op]} of microbatch {at.microbatch}"
        member = f", member {self.context.member} of {team}" if (team := self.context.plan.tensor) > 1 else ""
        what = f"{where} through stage {at.stage} (pipe {at.pipe}{member})"
        if ran_out_of_memory(error):
            return self.context.executor.out_of_memory(what, error)
        return StageFailed(f"{what} failed: {error!r}")


class _ErrorsOf:
    """A `with` block in which errors get the place of an instruction; a generator would cost three times as much."""

    __slots__ = ("_at", "_worker")

    def __init__(self, worker: TrainWorker, at: Instruction):
        self._worker, self._at = worker, at

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception) and (named := self._worker.named(error, self._at)) is not error:
            raise named from error
