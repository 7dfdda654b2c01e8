"""The start of gradient sums over the replicas of a stage: each sum is a task, started as early as pays.

A stage's sum starts right after its last backward where an idle gap follows on this rank (Chimera, section 3.2), and
after the flush otherwise: a sum that starts while the rank computes only slows the computation down.
The trainer sums with torch (`pipelined.training.gradient_sums`); the simulator prices the same sums.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar


class Parent(Protocol):
    """What runs tasks and ends with the first failure of one: an actor."""

    def start(self, work: Coroutine[Any, Any, Any], /) -> "asyncio.Task[Any]": ...


class OfStages(Protocol):
    """What is summed together, named by the stages that hold it: a bucket."""

    @property
    def stages(self) -> tuple[int, ...]: ...


B = TypeVar("B", bound=OfStages)


class GradientSync(Generic[B]):
    """The gradient sums of one rank in one step.

    Args:
        parent: the parent of the sums.
        buckets: those this rank holds.
        sum_bucket: sums one bucket over its holders, in place.
        overlapped: stages whose sum starts at once.
        held: every stage this rank holds.
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
        """The last backward of a stage is done on this rank: start its sum if it is to start at once."""
        self._done.add(stage)
        if stage in self._overlapped:
            self._start([b for b in self._waiting if self._complete(b)])

    async def finish(self) -> None:
        """Sum what is left (a stage without a microbatch adds zeros) and wait for all."""
        self._start(list(self._waiting))
        await asyncio.gather(*self._running)

    def _complete(self, bucket: B) -> bool:
        return self._held.intersection(bucket.stages) <= self._done

    def _start(self, buckets: Sequence[B]) -> None:
        for bucket in buckets:
            self._waiting.remove(bucket)
            self._running.append(self._parent.start(self._sum(bucket)))
