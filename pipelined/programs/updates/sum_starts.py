"""The start of gradient sums over the replicas of a stage; each sum is a task that runs beside the computation.

The program says when: a sum that stands right after its stage's last gradient starts with that gradient, even if a
dynamic schedule has moved it. Any other sum starts when the schedule itself asks for it, or after the last instruction.
Training sums with torch (`pipelined.training.sums.gradient_sums`); the simulator prices the same sums.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from pipelined.programs.instructions import Instruction


class TaskParent(Protocol):
    """The parent of tasks, which ends with their first failure; training passes an actor."""

    def start(self, work: Coroutine[Any, Any, Any], /) -> "asyncio.Task[Any]": ...


class HasStages(Protocol):
    """A bucket: parameters that are summed together, named by the stages that hold them."""

    @property
    def stages(self) -> tuple[int, ...]: ...


B = TypeVar("B", bound=HasStages)


class SumStarts(Generic[B]):
    """The starts of the gradient sums of one rank in one step.

    Args:
        parent: the parent of the tasks of the sums.
        buckets: the buckets that this rank holds.
        sum_bucket: sums one bucket over its holders, in place.
        program: the rank's instructions, with a gradient sum for every stage that it holds.
    """

    def __init__(
        self,
        parent: TaskParent,
        buckets: Sequence[B],
        sum_bucket: Callable[[B], Coroutine[Any, Any, None]],
        program: Sequence[Instruction],
    ):
        self._parent, self._sum = parent, sum_bucket
        self._held_stages = {instruction.stage for instruction in program if not instruction.computes}
        self._gradients_left = Counter(instruction.stage for instruction in program if instruction.op in "BW")
        self._due_stages = set(_stages_summed_early(program))
        self._waiting_buckets = list(buckets)
        self._tasks: list[asyncio.Task[None]] = []

    def record_end(self, instruction: Instruction) -> None:
        """Record the end of an instruction on this rank; start the sums that may start now."""
        if not instruction.computes:
            self._due_stages.add(instruction.stage)
        elif instruction.op in "BW":
            self._gradients_left[instruction.stage] -= 1
        else:
            return
        self._start([bucket for bucket in self._waiting_buckets if self._is_complete(bucket)])

    async def finish(self) -> None:
        """Sum the remaining buckets (a stage without a microbatch adds zeros) and wait for all sums."""
        self._start(list(self._waiting_buckets))
        await asyncio.gather(*self._tasks)

    def _is_complete(self, bucket: B) -> bool:
        """Whether every stage of a bucket on this rank has its last gradient, and its sum is due."""
        stages = self._held_stages.intersection(bucket.stages)
        return stages <= self._due_stages and not any(self._gradients_left[stage] for stage in stages)

    def _start(self, buckets: Sequence[B]) -> None:
        for bucket in buckets:
            self._waiting_buckets.remove(bucket)
            self._tasks.append(self._parent.start(self._sum(bucket)))


def _stages_summed_early(program: Sequence[Instruction]) -> Iterator[int]:
    """The stages with a sum right after their last gradient and ahead of another computation."""
    gradient = None
    sums = list[int]()
    for instruction in program:
        if instruction.computes:
            yield from sums
            gradient = instruction.stage if instruction.op in "BW" else None
            sums = []
        elif instruction.stage == gradient:
            sums.append(gradient)
