"""What a schedule file gives and what its coroutine may say to a worker.

A schedule is a module with two things: `layout(shape)`, which refuses impossible shapes and says who holds which
stage of which pipe, and `schedule(worker)`, a coroutine that one worker runs for one step. Each verb takes the next
microbatch of its pipe unless told otherwise, waits for its message, computes and sends; it never waits for a send.

A *dynamic* schedule also asks `ready`: whether the message of an instruction has come. By the answer it may choose when
weight halves run, and nothing else: the order of F, B and I must be the same whatever the answers.
"""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass

from pipelined.errors import UsageError

SCALES = ("direct", "forward-doubling", "backward-halving")


class ScheduleError(UsageError):
    """A shape the schedule cannot take, or a program that is wrong; the message says what would do."""


@dataclass(frozen=True)
class Shape:
    """What is asked of a schedule.

    Args:
        depth: stages, D.
        microbatches: per pipeline group and step, N.
        pipes: model replicas inside a group (2f for Chimera); 0 lets the schedule choose.
        chunks: stages a worker holds in one pipe, V.
        scale: how to go beyond D microbatches, one of `SCALES`.
    """

    depth: int
    microbatches: int
    pipes: int = 0
    chunks: int = 1
    scale: str = "direct"


@dataclass(frozen=True)
class Layout:
    """Who does what: the answer to a shape.

    Args:
        depth: stages, D.
        workers: ranks of one pipeline group.
        placement: (pipe, stage) to the workers that hold it (one, until tensors are sharded).
        microbatches: for each pipe its microbatches in the order they enter; each of 0 … N-1 once over all pipes.
        parts: pieces into which each microbatch of the shape is cut, and which are the microbatches here (2 where
            backwards are halved); a piece has 1/parts of the sequences and of the cost.
    """

    depth: int
    workers: int
    placement: dict[tuple[int, int], tuple[int, ...]]
    microbatches: tuple[tuple[int, ...], ...]
    parts: int = 1

    @property
    def pipes(self) -> int:
        return len(self.microbatches)

    def held_by(self, worker: int) -> list[tuple[int, int]]:
        """The (pipe, stage) pairs a worker holds, by pipe, then stage."""
        return sorted(place for place, workers in self.placement.items() if worker in workers)

    def stages_of(self, worker: int) -> list[int]:
        """The distinct stages a worker holds, ascending."""
        return sorted({stage for _, stage in self.held_by(worker)})


class Worker(ABC):
    """One worker as its schedule sees it: the verbs, and where it stands.

    Args:
        index: which worker of the group, 0 … workers-1.
        layout: the whole group's layout.
    """

    def __init__(self, index: int, layout: Layout):
        self.index, self.layout = index, layout
        self._taken: Counter[tuple[str, int, int]] = Counter()

    async def forward(self, pipe: int, stage: int | None = None, microbatch: int | None = None) -> None:
        """Forward of the next (or the given) microbatch of a pipe through this worker's stage of it."""
        await self._do("F", pipe, stage, microbatch)

    async def backward(self, pipe: int, stage: int | None = None, microbatch: int | None = None) -> None:
        """Whole backward: gradient of the input and of the weights."""
        await self._do("B", pipe, stage, microbatch)

    async def backward_input(self, pipe: int, stage: int | None = None, microbatch: int | None = None) -> None:
        """Input half of the backward; the weight half stays pending until `backward_weight`."""
        await self._do("I", pipe, stage, microbatch)

    async def backward_weight(self, pipe: int, stage: int | None = None, microbatch: int | None = None) -> None:
        """Weight half of the backward."""
        await self._do("W", pipe, stage, microbatch)

    def ready(self, op: str, pipe: int, stage: int | None = None, microbatch: int | None = None) -> bool:
        """Whether the next (or given) F, B or I of a pipe could start now, for its message has come; takes nothing."""
        return self.arrived(op, pipe, *self._next(op, pipe, stage, microbatch))

    @abstractmethod
    async def execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        """Do one instruction: op is F, B, I or W."""

    def arrived(self, op: str, pipe: int, stage: int, microbatch: int) -> bool:
        """Whether the message of an instruction has come, or it needs none; it must answer at once.

        A worker that cannot tell says yes, as here: then nothing runs in the meantime, and the verb waits.
        """
        return True

    async def _do(self, op: str, pipe: int, stage: int | None, microbatch: int | None) -> None:
        stage, microbatch = self._next(op, pipe, stage, microbatch)
        self._taken[op, pipe, stage] += 1
        await self.execute(op, pipe, stage, microbatch)

    def _next(self, op: str, pipe: int, stage: int | None, microbatch: int | None) -> tuple[int, int]:
        if stage is None:
            stage = next((s for p, s in self.layout.held_by(self.index) if p == pipe), None)
            if stage is None:
                raise ScheduleError(f"worker {self.index} holds no stage of pipe {pipe}; ask for a pipe it holds")
        if microbatch is None:
            entering, taken = self.layout.microbatches[pipe], self._taken[op, pipe, stage]
            if taken == len(entering):
                fact = f"worker {self.index} asks for one {op} more than there are (pipe: {pipe}, stage: {stage}"
                raise ScheduleError(f"{fact}, microbatches: {taken}); let the schedule stop there")
            microbatch = entering[taken]
        return stage, microbatch
