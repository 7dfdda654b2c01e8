"""The computation of one instruction: the message that it needs, and the place that its errors name."""

from dataclasses import dataclass
from typing import Any

from pipelined.errors import OutOfMemory, UsageError, ran_out_of_memory
from pipelined.programs.instructions import OP_NAMES, Instruction
from pipelined.random.keyed_random import KeyedRandom
from pipelined.training.job.rank_context import RankContext
from transports import Message, TransportError


class MessageSlot:
    """The message that an instruction needs, until it begins: nothing else may keep the message's memory."""

    __slots__ = ("_message",)

    def __init__(self, message: Message | None):
        self._message = message

    def take(self) -> Message | None:
        """The message; the slot is empty afterwards."""
        message = self._message
        self._message = None
        return message


class StageFailed(Exception):
    """An error inside one instruction; the message names rank, stage and microbatch."""


@dataclass(eq=False, slots=True)
class PlacedErrors:
    """A `with` block in which errors get the place of an instruction; a generator would cost three times as much."""

    context: RankContext
    step: int
    instruction: Instruction

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception) and (placed := self._placed(error)) is not error:
            raise placed from error

    def _placed(self, error: Exception) -> Exception:
        """An error with rank, stage, member and microbatch; a transport's own name their rank."""
        if isinstance(error, TransportError | UsageError) and not isinstance(error, OutOfMemory):
            return error
        context, instruction = self.context, self.instruction
        team = context.plan.tensor
        member = f", member {context.member} of {team}" if team > 1 else ""
        rank = f"rank {context.actor.rank}, step {self.step}"
        through = f"microbatch {instruction.microbatch} through stage {instruction.stage}"
        what = f"{rank}: {OP_NAMES[instruction.op]} of {through} (pipe {instruction.pipe}{member})"
        if ran_out_of_memory(error):
            return context.executor.out_of_memory(what, error)
        return StageFailed(f"{what} failed: {error!r}")


@dataclass(eq=False, slots=True)
class StageComputation:
    """The computation of one instruction, as the device runs it.

    Args:
        needed: the message of the instruction.
        scale: by which the loss is multiplied before its backward.
    """

    context: RankContext
    step: int
    instruction: Instruction
    needed: MessageSlot
    scale: float

    def run_with_place(self) -> Any:
        """The result of `run`; an error names the place of the instruction."""
        with PlacedErrors(self.context, self.step, self.instruction):
            return self.run()

    def run(self) -> Any:
        """The result of the stage; of a team's stage a coroutine of it."""
        stage = self.context.stages[self.instruction.stage]
        key = self.instruction.pipe, self.instruction.microbatch
        number = self.context.global_microbatch(self.instruction.microbatch)
        random = KeyedRandom(self.context.seed, self.step, number)
        match self.instruction.op:
            case "F":
                x = self.needed.take() or self.context.feed.inputs(self.step, number)
                return stage.forward(key, x, random, self._targets(number))
            case "W":
                return stage.backward_weight(key)
        backward = stage.backward if self.instruction.op == "B" else stage.backward_input
        targets = self._targets(number) if self.context.recompute else None
        return backward(key, self.needed.take(), self.scale, random, targets)

    def _targets(self, number: int) -> Any:
        """The targets of a microbatch for the last stage; None for other stages."""
        last = self.instruction.stage == self.context.plan.depth - 1
        return self.context.feed.targets(self.step, number) if last else None
