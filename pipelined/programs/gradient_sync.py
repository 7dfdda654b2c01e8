"""The start of gradient sums over the replicas of a stage: each sum is a task, started as early as it saves time.

A stage's sum starts right after its last backward if an idle gap follows on this rank (Chimera, section 3.2), and after
the flush otherwise: a sum that runs while the rank computes only slows the computation down.
Training sums with torch (`pipelined.training.gradient_sums`); the simulator prices the same sums.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar


class Parent(Protocol):
    """The parent of tasks; it ends with their first failure. In training an actor."""

    def start(self, work: Coroutine[Any, Any, Any], /) -> "asyncio.Task[Any]": ...


class OfStages(Protocol):
    """A bucket: parameters that are summed together, named by the stages that hold them."""

    @property
    def stages(self) -> tuple[int, ...]: ...


B = TypeVar("B", bound=OfStages)


class GradientSync(Generic[B]):
    """The gradient sums of one rank in one step.

    Args:
        parent: the parent of the tasks of the sums.
        buckets: the buckets that this rank holds.
        sum_bucket: sums one bucket over its holders, in place.
        overlapped: stages with a sum that starts right after their last backward.
        held: every stage that this rank holds.
    """

    def __init__(
        self,
        parent: Parent,
        buckets: Sequence[B],
        sum_bucket: Callable[[B], Coroutine[Any, Any, None]],
        overlapped: Collection[int],
        held: Collection[int],
    ):
        self._parent, self._sum = parent, sum_bucket
        self._overlapped, self._held = frozenset(overlapped), frozenset(held)
        self._done: set[int] = set()
        self._waiting = list(buckets)
        self._running: list[asyncio.Task[None]] = []

    def stage_done(self, stage: int) -> None:
        """Record that the last backward of a stage is done on this rank; start its sum if the stage is overlapped."""
        self._done.add(stage)
        if stage in self._overlapped:
            self._start([b for b in self._waiting if self._complete(b)])

    async def finish(self) -> None:
        """Sum the remaining buckets (a stage without a microbatch adds zeros) and wait for all sums."""
        self._start(list(self._waiting))
        await asyncio.gather(*self._running)

    def _complete(self, bucket: B) -> bool:
        return self._held.intersection(bucket.stages) <= self._done

    def _start(self, buckets: Sequence[B]) -> None:
        for bucket in buckets:
            self._waiting.remove(bucket)
            self._running.append(self._parent.start(self._sum(bucket)))
