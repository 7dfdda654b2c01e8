"""A program: what every worker does in one step, in its order. Immutable, and free of any clock or device.

An instruction *takes* what must be there before it can start and *gives* what it leaves behind. The proof, the price
and the execution of a program read its dependencies here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from pipelined.schedules.layout import StageMap

Token = tuple[str, int, int, int]
"""What one instruction leaves for another: (kind, pipe, stage it is for, microbatch).

`activation` and `gradient` are messages between neighbouring stages; `stash` (a forward's saved tensors) and
`pending` (an input half whose weight half is to come) stay on the worker.
"""

Place = tuple[int, int]
"""(worker, position in its program)."""

OPS = {"F": "forward", "B": "backward", "I": "backward_input", "W": "backward_weight"}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One forward (F), backward (B), or half of one (I: input, W: weights)."""

    op: str
    pipe: int
    stage: int
    microbatch: int

    def __repr__(self) -> str:
        return f"{self.stage}{self.op}{self.microbatch}p{self.pipe}"

    def takes(self, depth: int) -> list[Token]:
        """What it waits for."""
        if self.op == "F":
            return [self._token("activation", self.stage)] if self.stage > 0 else []
        if self.op == "W":
            return [self._token("pending", self.stage)]
        gradient = [self._token("gradient", self.stage)] if self.stage < depth - 1 else []
        return [self._token("stash", self.stage), *gradient]

    def gives(self, depth: int) -> list[Token]:
        """What it leaves behind."""
        if self.op == "F":
            activation = [self._token("activation", self.stage + 1)] if self.stage < depth - 1 else []
            return [self._token("stash", self.stage), *activation]
        if self.op == "W":
            return []
        gradient = [self._token("gradient", self.stage - 1)] if self.stage > 0 else []
        return gradient + [self._token("pending", self.stage)] * (self.op == "I")

    def _token(self, kind: str, stage: int) -> Token:
        return kind, self.pipe, stage, self.microbatch


@dataclass(frozen=True)
class Program:
    """The instructions of each worker of one pipeline group."""

    layout: StageMap
    workers: tuple[tuple[Instruction, ...], ...]

    def everything(self) -> Iterator[tuple[Place, Instruction]]:
        """Every instruction and where it stands, worker by worker in order."""
        for worker, instructions in enumerate(self.workers):
            for position, instruction in enumerate(instructions):
                yield (worker, position), instruction
