"""What a schedule file gives and what its coroutine may say to a worker.

A schedule is a module with two things: `layout(shape)`, which refuses impossible shapes and says who holds which
stage of which pipe, and `schedule(worker)`, a coroutine that one worker runs for one step. Each verb takes the next
microbatch of its pipe unless told otherwise, waits for its message, computes and sends; it never waits for a send.

A *dynamic* schedule also asks `ready`, or `comes`: whether the message of an instruction has come. By the answer it may
choose when weight halves run, and nothing else: the order of F, B and I must be the same whatever the answers.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from pipelined.schedules.layout import ScheduleError, StageMap


class Worker(ABC):
    """One worker as its schedule sees it: the verbs, and where it stands.

    Args:
        index: which worker of the group, 0 … workers-1.
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
        """Whether the next (or given) F, B or I of a pipe could start now, for its message has come; takes nothing."""
        return self.arrived(op, pipe, *self._next(op, pipe, stage, microbatch))

    async def comes(self, op: str, pipe: int, stage: int | None = None, microbatch: int | None = None) -> bool:
        """As `ready`, but a message that is due and has not come is given a moment, much less than a weight half."""
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
        """Whether another microbatch of a pipe is to go forward here, where whoever trains may end a stretch early."""
        stage = self._stage(pipe)
        return self._taken["F", pipe, stage] < len(self.layout.microbatches[pipe])

    @property
    def halves(self) -> int:
        """Weight halves that were asked for so far."""
        return sum(taken for (op, _, _), taken in self._taken.items() if op == "W")

    @abstractmethod
    async def execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        """Do one instruction: op is F, B, I or W."""

    def arrived(self, op: str, pipe: int, stage: int, microbatch: int) -> bool:
        """Whether the message of an instruction has come, or it needs none; it must answer at once.

        A worker that cannot tell says yes, as here: then nothing runs in the meantime, and the verb waits.
        """
        return True

    async def arrives(self, op: str, pipe: int, stage: int, microbatch: int) -> bool:
        """Whether the message of an instruction, which has not `arrived`, comes within the moment that it is given.

        A worker that cannot tell which message is due gives none a moment, as here.
        """
        return False

    async def any_arrival(self, choices: Sequence[tuple[str, int, int, int]]) -> None:
        """Wait until the message of one of these (op, pipe, stage, microbatch) has come, none of which `arrived`."""
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
