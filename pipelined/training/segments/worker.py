"""The training worker: it executes the instructions of a schedule with torch and a transport.

One instance is one worker in one step. Each instruction waits for its message, computes on the device, and sends the
result to the neighbour; only the schedule decides the order.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipelined.actors.device.follower import FollowedWork
from pipelined.errors import UsageError
from pipelined.programs.addresses import ACTIVATION, GRADIENT, Activation, Address, Gradient
from pipelined.programs.due_messages import DueMessages
from pipelined.programs.instructions import OP_NAMES, Instruction
from pipelined.programs.updates.sum_starts import SumStarts
from pipelined.schedules import InstructionKey, Worker
from pipelined.training.exchange.parcels import Parcel
from pipelined.training.exchange.prefetch import MessageSource, Origin, Prefetcher
from pipelined.training.exchange.skips import key_between
from pipelined.training.job.rank_context import RankContext
from pipelined.training.segments.computation import MessageSlot, PlacedErrors, StageComputation
from pipelined.training.segments.instruction_queue import InstructionQueue
from transports import Message, Nursery


@dataclass(eq=False, slots=True, kw_only=True)
class InstructionWork(FollowedWork):
    """One instruction on the device; at its end its worker sends the result."""

    worker: "TrainWorker"
    instruction: Instruction

    def finish(self, result: Any, start: float, end: float) -> None:
        self.worker.finish(self.instruction, result, start, end)


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
        sums: SumStarts[Any] | None = None,
        program: Sequence[Instruction] = (),
        *,
        messages: MessageSource | None = None,
        instructions: Nursery | None = None,
        loss_scale: float = 1.0,
    ):
        super().__init__(context.worker, context.plan.stage_map)
        self._scale = loss_scale / context.plan.microbatches_an_update
        self.context, self.step = context, step
        self.losses = dict[int, float]()
        self.count = 0.0
        self._due = DueMessages(program)
        origins = [origin for instruction in program for origin in self.origins(instruction).values()]
        self._incoming = messages or Prefetcher(context.actor, origins, receive=context.messages.receive)
        self._instructions = instructions
        self._queue = InstructionQueue(sums)
        self._backwards_left = Counter(instruction.stage for instruction in program if instruction.op in "BW")
        self._sends = set[asyncio.Task[None]]()

    async def _execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        """Wait for the instruction's message, compute, send the result, and start the gradient sums that are due."""
        instruction = Instruction(op, pipe, stage, microbatch)
        self._backwards_left[stage] -= op in "BW"
        origins = self.origins(instruction)
        bound = self._queue.with_message if instruction.op == "W" or origins else self._queue.without_message
        await bound.acquire()
        needed = MessageSlot(await self._message(instruction, origins) if origins else None)
        self._queue.add(instruction, bound)
        if not instruction.computes:
            return
        computation = StageComputation(self.context, self.step, instruction, needed, self._scale)
        is_awaited = self._is_awaited(instruction)
        if self._instructions is None:
            with self._placing_errors(instruction):
                computed = await self.context.compute(OP_NAMES[op], computation.run, is_awaited)
            self.finish(instruction, *computed)
        else:
            function = computation.run_with_place
            work = InstructionWork(OP_NAMES[op], function, is_awaited, worker=self, instruction=instruction)
            self.context.executor.submit(self._instructions, work)

    def finish(self, instruction: Instruction, result: Any, start: float, end: float) -> None:
        """Send the result of an instruction that was computed from `start` to `end`, and end it."""
        with self._placing_errors(instruction):
            self._send_result(instruction, result, start, end)
        self._queue.end(instruction)

    async def sent(self) -> None:
        """Wait until all that was sent so far is with its receivers, and so among the bytes that this rank has sent."""
        if self._sends:
            await asyncio.wait(self._sends)

    def _has_arrived(self, key: InstructionKey) -> bool:
        """Whether an instruction's message is on this rank, or the instruction needs no message.

        In a team every member must run the same order. There this is always True, and the schedule follows its proof.
        """
        if self.context.follows_proved_order:
            return True
        return all(self._incoming.arrived(*origin) for origin in self.origins(Instruction(*key)).values())

    async def _wait_for_arrival(self, choices: Sequence[InstructionKey], patience: float) -> None:
        """Wait for a due message while the device is busy, and then for a share of the last weight half here."""
        if patience == math.inf:
            return await super()._wait_for_arrival(choices, patience)
        instructions = [Instruction(*key) for key in choices]
        due = (instruction for instruction in instructions if self._due.covers(instruction, self._weight_halves))
        requests = [request for instruction in due for request in self.requests_of(instruction)]
        if self._queue.waiting:
            waits: list[asyncio.Future[Any]] = [*requests, self._queue.emptied()]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if requests:
            seconds = patience * self.context.executor.took.get(OP_NAMES["W"], 0.0)
            await asyncio.wait(requests, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def _send_result(self, instruction: Instruction, result: Any, start: float, end: float) -> None:
        """Record a computation, and send its result at once, even if other work is pending here."""
        op = instruction.op
        name = OP_NAMES[instruction.op]
        pipe = instruction.pipe
        stage = instruction.stage
        where = self.step, stage, instruction.microbatch, pipe
        self.context.tracer.record(name.partition("_")[0], name, start, end, where)
        if op == "F" and stage == self.stage_map.depth - 1:
            self._score(self.context.global_microbatch(instruction.microbatch), *result.tensors)
        elif op == "F":
            for reader, parcel in self.context.skips.split_activations(stage, result).items():
                self._send(instruction, Activation(self.step, pipe, reader, instruction.microbatch), parcel)
        elif op in "BI" and stage > 0 and result is not None:
            for giver, parcel in self.context.skips.split_gradients(stage, result).items():
                self._send(instruction, Gradient(self.step, pipe, giver, instruction.microbatch), parcel)

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

    async def _message(self, instruction: Instruction, origins: Mapping[int, Origin]) -> Message:
        """The message that an instruction needs, joined if it comes from several stages."""
        kind = ACTIVATION if instruction.op == "F" else GRADIENT
        skips = self.context.skips
        with (
            self._placing_errors(instruction),
            self.context.tracer.span("receive", kind, **self._span_fields(instruction)),
        ):
            messages = {stage: await self._incoming.take(*origin) for stage, origin in origins.items()}
            join = skips.join_activations if instruction.op == "F" else skips.join_gradients
            return join(instruction.stage, messages)

    def _is_awaited(self, instruction: Instruction) -> bool:
        """Whether another rank waits for the result of an instruction, or a gradient sum may start at its end."""
        if instruction.op == "F":
            return instruction.stage < self.stage_map.depth - 1
        sends = instruction.op in "BI" and instruction.stage > 0
        return sends or (instruction.op in "BW" and not self._backwards_left[instruction.stage])

    def _send(self, instruction: Instruction, address: Address, parcel: Parcel) -> None:
        async def send() -> None:
            with self.context.tracer.span("send", address.kind, **self._span_fields(instruction)):
                await self.context.messages.send(peer, key, *parcel.tensors, note=parcel.note)

        key = key_between(instruction.stage, address)
        peer = self.context.holder(address.pipe, address.stage)
        sending = self.context.actor.start(send())
        self._sends.add(sending)
        sending.add_done_callback(self._sends.discard)

    def origins(self, instruction: Instruction) -> dict[int, Origin]:
        """The sender and the key of each message that an instruction needs, by the stage that it comes from."""
        stage, skips = instruction.stage, self.context.skips
        receives = instruction.op in "BI" and stage < self.stage_map.depth - 1
        if not receives and (instruction.op != "F" or stage == 0):
            return {}
        where = self.step, instruction.pipe, stage, instruction.microbatch
        address: Address = Gradient(*where) if receives else Activation(*where)
        senders = [stage + 1, *skips.readers(stage)] if receives else [stage - 1, *skips.givers(stage)]
        holders = {sender: self.context.holder(instruction.pipe, sender) for sender in senders}
        return {sender: (rank, key_between(sender, address)) for sender, rank in holders.items()}

    def requests_of(self, instruction: Instruction) -> list[asyncio.Task[Message]]:
        """The requests of those messages that an instruction waits for; the caller must not cancel them."""
        requested = (self._incoming.requested(*origin) for origin in self.origins(instruction).values())
        requests = [request for request in requested if request]
        return [request for request in requests if not request.done()] or requests

    def _placing_errors(self, instruction: Instruction) -> PlacedErrors:
        return PlacedErrors(self.context, self.step, instruction)

    def _span_fields(self, instruction: Instruction) -> dict[str, int]:
        stage, microbatch, pipe = instruction.stage, instruction.microbatch, instruction.pipe
        return {"step": self.step, "stage": stage, "microbatch": microbatch, "pipe": pipe}
