"""The worker that a schedule's coroutine commands: forward, backward, its two halves, and whether a message is here.

A schedule is a module with two functions: `layout(shape)`, which refuses an impossible shape and returns the stage map,
and `schedule(worker)`, a coroutine that one worker runs for one step. Each verb takes the next microbatch of its pipe
unless one is given, waits for its message, computes and sends; it never waits for a send.

A *dynamic* schedule also asks `ready` or `comes`: whether the message of an instruction has arrived. The answer may
change when weight halves run, and nothing else: the order of F, B and I must be the same for all answers.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from pipelined.schedules.layout import ScheduleError, StageMap


class Worker(ABC):
    """One worker as its schedule sees it: the verbs, its index and the stage map.

    Args:
        index: of the worker in its group, 0 … workers-1.
        layout: the whole group's layout.
    """

    def __init__(self, index: int, layout: StageMap):
        self.index, self.layout = index, layout
        self._taken: Counter[tuple[str, int, int]] = Counter()
        self._first = {pipe: stage for pipe, stage in reversed(layout.held_by(index))}

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
        """Whether the next (or given) F, B or I of a pipe could start now; takes nothing."""
        return self.arrived(op, pipe, *self._next(op, pipe, stage, microbatch))

    async def comes(self, op: str, pipe: int, stage: int | None = None, microbatch: int | None = None) -> bool:
        """As `ready`, but wait a moment, much less than a weight half, for a message that is due."""
        at = op, pipe, *self._next(op, pipe, stage, microbatch)
        return self.arrived(*at) or await self.arrives(*at)

    async def first_of(self, *choices: tuple[str, int]) -> str:
        """Wait until the next instruction of one of these (op, pipe) could start; where several could, the first named.

        Only an asynchronous schedule may let what it does depend on this.

        Returns: the op.
        """
        while not (able := [op for op, pipe in choices if self.ready(op, pipe)]):
            await self.any_arrival([(op, pipe, *self._next(op, pipe, None, None)) for op, pipe in choices])
        return able[0]

    async def enters(self, pipe: int) -> bool:
        """Whether another microbatch of a pipe is to go forward here; training may end a span of steps early."""
        stage = self._stage(pipe)
        return self._taken["F", pipe, stage] < len(self.layout.microbatches[pipe])

    @property
    def halves(self) -> int:
        """Weight halves requested so far."""
        return sum(taken for (op, _, _), taken in self._taken.items() if op == "W")

    @abstractmethod
    async def execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        """Do one instruction: op is F, B, I or W."""

    def arrived(self, op: str, pipe: int, stage: int, microbatch: int) -> bool:
        """Whether the message of an instruction has arrived, or it needs none; returns at once.

        A worker that cannot tell returns True, as here: then nothing runs in the meantime, and the verb waits.
        """
        return True

    async def arrives(self, op: str, pipe: int, stage: int, microbatch: int) -> bool:
        """Whether the message of an instruction, which has not `arrived`, arrives within a short wait.

        A worker that cannot tell which message is due does not wait, as here.
        """
        return False

    async def any_arrival(self, choices: Sequence[tuple[str, int, int, int]]) -> None:
        """Wait until the message of one of these (op, pipe, stage, microbatch) has arrived; none of them has yet."""
        fact = f"worker {self.index} cannot wait for one of several messages"
        raise ScheduleError(f"{fact}; let the layout of an asynchronous schedule say its `updates`")

    async def _do(self, op: str, pipe: int, stage: int | None, microbatch: int | None) -> None:
        stage, microbatch = self._next(op, pipe, stage, microbatch)
        self._taken[op, pipe, stage] += 1
        await self.execute(op, pipe, stage, microbatch)

    def _next(self, op: str, pipe: int, stage: int | None, microbatch: int | None) -> tuple[int, int]:
        if stage is None:
            stage = self._stage(pipe)
        if microbatch is None:
            entering, taken = self.layout.microbatches[pipe], self._taken[op, pipe, stage]
            if taken == len(entering):
                fact = f"worker {self.index} asks for one {op} more than there are (pipe: {pipe}, stage: {stage}"
                raise ScheduleError(f"{fact}, microbatches: {taken}); let the schedule stop there")
            microbatch = entering[taken]
        return stage, microbatch

    def _stage(self, pipe: int) -> int:
        """This worker's first stage of a pipe."""
        if pipe not in self._first:
            raise ScheduleError(f"worker {self.index} holds no stage of pipe {pipe}; ask for a pipe it holds")
        return self._first[pipe]
