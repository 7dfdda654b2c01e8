"""A program: the instructions of every worker in one step, in order. Immutable, without a clock or a device.

An instruction *takes* tokens, which must exist before it can start, and *gives* tokens when it ends. The check, the
pricing and the execution of a program read its dependencies here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipelined.programs.addresses import ACTIVATION, GRADIENT
from pipelined.schedules import EVERY, SUM, InstructionKey, StageMap

Token = tuple[str, int, int, int]
"""A result that one instruction leaves for another: (kind, pipe, the stage that takes it, microbatch).

The kinds of `addresses.MESSAGE_KINDS` are messages between neighbouring stages; the two below stay on the worker.
"""
STASH = "stash"
"""The tensors that a forward saves."""
PENDING = "pending"
"""What an input half leaves for its weight half."""

Position = tuple[int, int]
"""(worker, position in its program)."""

OP_NAMES = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}
"""The op of each computation, and its name; the only other op is a gradient sum."""

UPDATE = "U"
"""What a step ends with. This op and the two below are timed and priced; no program has them."""
DELAYED_UPDATE = "D"
"""A delayed update, which runs beside the next step."""
RECOMPUTED_FORWARD = "A"
"""The forward inside a backward with recomputation."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One forward (F), backward (B), or half of one (I: input, W: weights); or the start of a gradient sum (S).

    A gradient sum adds up a stage's gradient over all holders of the stage. It covers all pipes and microbatches, so it
    has `EVERY` for both. It starts there and runs beside the instructions that follow.
    """

    op: str
    pipe: int
    stage: int
    microbatch: int

    def __repr__(self) -> str:
        if not self.computes:
            return f"{self.stage}{self.op}"
        return f"{self.stage}{self.op}{self.microbatch}p{self.pipe}"

    @property
    def key(self) -> InstructionKey:
        return self.op, self.pipe, self.stage, self.microbatch

    @property
    def computes(self) -> bool:
        """Whether it takes time on the worker; only a gradient sum does not."""
        return self.op != SUM

    def takes(self, depth: int) -> list[Token]:
        """The tokens that it waits for."""
        if self.op == "F":
            return [self._token(ACTIVATION, self.stage)] if self.stage > 0 else []
        if self.op == "W":
            return [self._token(PENDING, self.stage)]
        if not self.computes:
            return []
        gradient = [self._token(GRADIENT, self.stage)] if self.stage < depth - 1 else []
        return [self._token(STASH, self.stage), *gradient]

    def gives(self, depth: int) -> list[Token]:
        """The tokens that it leaves."""
        if self.op == "F":
            activation = [self._token(ACTIVATION, self.stage + 1)] if self.stage < depth - 1 else []
            return [self._token(STASH, self.stage), *activation]
        if self.op == "W" or not self.computes:
            return []
        gradient = [self._token(GRADIENT, self.stage - 1)] if self.stage > 0 else []
        return gradient + [self._token(PENDING, self.stage)] * (self.op == "I")

    def _token(self, kind: str, stage: int) -> Token:
        return kind, self.pipe, stage, self.microbatch


def gradient_sum(stage: int) -> Instruction:
    """The start of a stage's gradient sum."""
    return Instruction(SUM, EVERY, stage, EVERY)


@dataclass(frozen=True)
class Program:
    """The instructions of each worker of one pipeline group."""

    stage_map: StageMap
    workers: tuple[tuple[Instruction, ...], ...]

    def instructions(self) -> Iterator[tuple[Position, Instruction]]:
        """Every instruction with its position, worker by worker in order."""
        for worker, instructions in enumerate(self.workers):
            for position, instruction in enumerate(instructions):
                yield (worker, position), instruction

    @property
    def keys(self) -> list[list[InstructionKey]]:
        """The keys of every worker's instructions; `write_table` writes a table from them."""
        return [[instruction.key for instruction in instructions] for instructions in self.workers]
