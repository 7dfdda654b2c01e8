"""The training worker: it executes the instructions of a schedule with torch and a transport.

One instance is one worker in one step. Each instruction waits for its message, computes on the device, and sends the
result to the neighbour; only the schedule decides the order.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from pipelined.actors.actor import Actor
from pipelined.actors.executor import Executor
from pipelined.actors.messages import Activation, Address, Gradient
from pipelined.errors import UsageError
from pipelined.programs.gradient_sync import GradientSync
from pipelined.programs.instructions import OPS, SUM, Instruction
from pipelined.programs.plan import Plan
from pipelined.programs.pricing.virtual_worker import DueMessages
from pipelined.random.keyed_random import KeyedRandom
from pipelined.schedules import Worker
from pipelined.schedules.worker import At
from pipelined.traces.file import Tracer
from pipelined.training.exchange.compression import Compression
from pipelined.training.exchange.prefetch import MessageSource, Origin, Prefetcher
from pipelined.training.exchange.stream import Parcel
from transports import Message, TransportError


class StageFailed(Exception):
    """An error inside one instruction; the message names rank, stage and microbatch."""


class Computation(Protocol):
    """The interface of a stage for a worker: `pipelined.training.stage.Stage`, or a substitute with the right sizes.

    Inputs are messages or tensors of the feed; a transport must be able to send the results. The result of a forward
    through the last stage is the loss, and its count if it is a sum; that of a backward through the first stage is not
    sent. A stage of a team gives a coroutine of the result (see `RankContext.compute`).
    """

    def forward(
        self, key: tuple[int, int], x: Any, random: KeyedRandom, targets: Any = None
    ) -> Parcel | Coroutine[Any, Any, Parcel]: ...

    def backward(
        self, key: tuple[int, int], gradient: Any, scale: float, random: KeyedRandom, targets: Any = None
    ) -> Parcel | Coroutine[Any, Any, Parcel | None] | None: ...

    def backward_input(
        self, key: tuple[int, int], gradient: Any, scale: float, random: KeyedRandom, targets: Any = None
    ) -> Parcel | Coroutine[Any, Any, Parcel | None] | None: ...

    def backward_weight(self, key: tuple[int, int]) -> Coroutine[Any, Any, None] | None: ...


class MicrobatchSource(Protocol):
    """The data: inputs of the first stage and targets of the last."""

    def inputs(self, step: int, microbatch: int) -> Any: ...

    def targets(self, step: int, microbatch: int) -> Any: ...


@dataclass(frozen=True)
class RankContext:
    """The objects that one rank uses in all steps.

    Args:
        actor: the mailbox of the rank.
        plan: the plan of the whole job.
        stages: the stages that the rank holds, by number.
        executor: runs the computations of the stages.
        feed: the data, by global microbatch.
        tracer: records the instructions.
        seed: the seed of the run.
        compression: sends tensors between stages; default: without a codec.
    """

    actor: Actor
    plan: Plan
    stages: Mapping[int, Computation]
    executor: Executor
    feed: MicrobatchSource
    tracer: Tracer
    seed: int
    compression: Compression | None = None

    @cached_property
    def messages(self) -> Compression:
        """Sends tensors to other stages and receives them."""
        return self.compression or Compression(self.actor)

    @property
    def group(self) -> int:
        return self.plan.position(self.actor.rank)[0]

    @property
    def worker(self) -> int:
        return self.plan.position(self.actor.rank)[1]

    @property
    def member(self) -> int:
        return self.plan.member(self.actor.rank)

    def holder(self, pipe: int, stage: int) -> int:
        """The rank of this group that holds this member's piece of a stage."""
        return self.plan.holder(self.group, pipe, stage, self.member)

    async def compute(self, name: str, work: Callable[[], Any]) -> tuple[Any, float, float]:
        """Compute on the executor; see `Executor.run`.

        Args:
            work: returns the result, or a coroutine of it, which runs computations of its own on the executor.
        """
        result, start, end = await self.executor.run(name, work)
        if isinstance(result, Coroutine):
            result, end = await result, self.executor.clock.now()
        return result, start, end


class TrainWorker(Worker):
    """One worker of one group in one step.

    Args:
        context: the context of the rank.
        step: the step, from 0.
        sums: starts gradient sums; None: nothing is summed here.
        program: this worker's instructions as proved, so that it can request messages early, and a dynamic schedule
            waits briefly for messages that are due; empty if they are not known beforehand.
        messages: where it takes its messages from; None: from a `Prefetcher` of its own.

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
        messages: MessageSource | None = None,
    ):
        super().__init__(context.worker, context.plan.layout)
        self.context, self.step, self._sums = context, step, sums
        self.losses: dict[int, float] = {}
        self.count = 0.0
        self._due = DueMessages(program)
        expected = filter(None, map(self.origin, program))
        self._messages = messages or Prefetcher(context.actor, expected, receive=context.messages.receive)

    async def execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        """Wait for the instruction's message, compute, send the result, and start the gradient sums that are due."""
        at = Instruction(op, pipe, stage, microbatch)
        with self._name_in_errors(at):
            if op == "F":
                await self._forward(at)
            elif op == "W":
                await self._compute(at, lambda: self.context.stages[stage].backward_weight(_alive(at)))
            elif op != SUM:
                await self._backward(at)
        if self._sums is not None:
            self._sums.ended(at)

    def arrived(self, at: At) -> bool:
        """Whether an instruction's message is on this rank, or the instruction needs no message."""
        origin = self.origin(Instruction(*at))
        return origin is None or self._messages.arrived(*origin)

    async def arrival(self, choices: Sequence[At], patience: float) -> None:
        """Wait for a message that is due, at most for a share of the duration of the last weight half here."""
        if patience == math.inf:
            return await super().arrival(choices, patience)
        due = [at for at in (Instruction(*at) for at in choices) if self._due.covers(at, self.halves)]
        requests = [self._messages.requested(*origin) for at in due if (origin := self.origin(at))]
        if known := [request for request in requests if request is not None]:
            seconds = patience * self.context.executor.took.get(OPS["W"], 0.0)
            await asyncio.wait(known, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    async def _forward(self, at: Instruction) -> None:
        held, random, targets = self.context.stages[at.stage], self._random(at), self._targets(at)
        arrived = await self._arrival(at) if at.stage else None

        def work() -> Any:
            x = self.context.feed.inputs(self.step, self._number(at)) if arrived is None else arrived
            return held.forward(_alive(at), x, random, targets)

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

    async def _backward(self, at: Instruction) -> None:
        """A whole backward or its input half; sends the gradient at once, even if other work is pending here."""
        held, random, targets = self.context.stages[at.stage], self._random(at), self._targets(at)
        gradient = await self._arrival(at) if targets is None else None
        scale = 1.0 / self.context.plan.microbatches_an_update
        half = held.backward if at.op == "B" else held.backward_input
        back = await self._compute(at, lambda: half(_alive(at), gradient, scale, random, targets))
        if at.stage > 0 and back is not None:
            self._send(at, Gradient(self.step, at.pipe, at.stage - 1, at.microbatch), back)

    async def _arrival(self, at: Instruction) -> Message:
        """The message that an instruction needs."""
        origin = self.origin(at)
        assert origin is not None
        with self.context.tracer.span("receive", str(origin[1][0]), **self._span_fields(at)):
            return await self._messages.take(*origin)

    async def _compute(self, at: Instruction, work: Callable[[], Any]) -> Any:
        name = OPS[at.op]
        result, start, end = await self.context.compute(name, work)
        place = self.step, at.stage, at.microbatch, at.pipe
        self.context.tracer.record(name.partition("_")[0], name, start, end, place)
        return result

    def _send(self, at: Instruction, address: Address, parcel: Parcel) -> None:
        async def send() -> None:
            with self.context.tracer.span("send", address.kind, **self._span_fields(at)):
                await self.context.messages.send(peer, address.key, *parcel.tensors, note=parcel.note)

        peer = self.context.holder(address.pipe, address.stage)
        self.context.actor.start(send())

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
        if at.stage < self.layout.depth - 1:
            return None
        return self.context.feed.targets(self.step, self._number(at))

    @contextmanager
    def _name_in_errors(self, at: Instruction) -> Iterator[None]:
        """Add rank, stage and microbatch to an instruction's error; a transport's errors name their rank already."""
        try:
            yield
        except (TransportError, UsageError):
            raise
        except Exception as error:
            where = f"rank {self.context.actor.rank}, step {self.step}: {OPS[at.op]} of microbatch {at.microbatch}"
            raise StageFailed(f"{where} through stage {at.stage} (pipe {at.pipe}) failed: {error!r}") from error


def _alive(at: Instruction) -> tuple[int, int]:
    return at.pipe, at.microbatch
