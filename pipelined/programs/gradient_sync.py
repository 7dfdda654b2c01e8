"""Summing gradients over the replicas of a stage, each sum a task of its own, started as early as pays.

A stage's sum starts right after its last backward where an idle gap follows on this rank (Chimera, section 3.2), and
after the flush otherwise: started in a busy stretch it would only slow the computation down.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from collectives import Group, all_reduce, allocate
from collectives.all_reduce import names_in
from pipelined.errors import UsageError
from pipelined.programs.bucket_names import Stages

if TYPE_CHECKING:  # it needs torch, which pricing the same sums does without
    from pipelined.training.parameters import Bucket


class Parent(Protocol):
    """Whoever answers for tasks: an actor."""

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
        """Say that the last backward of a stage is done on this rank."""
        self._done.add(stage)
        if stage in self._overlapped:
            self._start([b for b in self._waiting if self._complete(b)])

    async def finish(self) -> None:
        """Sum whatever is left (a stage without a microbatch adds zeros) and wait for all."""
        self._start(list(self._waiting))
        await asyncio.gather(*self._running)

    def _complete(self, bucket: B) -> bool:
        return self._held.intersection(bucket.stages) <= self._done

    def _start(self, buckets: Sequence[B]) -> None:
        for bucket in buckets:
            self._waiting.remove(bucket)
            self._running.append(self._parent.start(self._sum(bucket)))


async def sum_over_holders(groups: Mapping[Stages, Group], algorithm: str, bucket: "Bucket") -> None:
    """Add up a bucket's gradient over its holders, in place; a GPU's goes by way of the host."""
    if len(bucket.holders) == 1:
        return
    host = bucket.gradient.cpu()
    await all_reduce(groups[bucket.stages], host, "sum", algorithm)
    if host is not bucket.gradient:
        bucket.gradient.copy_(host)


async def place_gradients(groups: Mapping[Stages, Group], buckets: Iterable["Bucket"], algorithm: str) -> None:
    """Let gradients lie where all holders can reach them, if they are to be summed through memory that they share.

    All ranks call this, before the first backward, with nothing else under way on the groups.
    """
    if not {"auto", "shared"} & names_in(algorithm):
        return
    for bucket in sorted(buckets, key=lambda bucket: groups[bucket.stages].channel):
        group, gradient = groups[bucket.stages], bucket.gradient
        if group.size > 1 and gradient.device.type == "cpu":
            bucket.move(await allocate(group, gradient.nbytes, "uint8"))


async def ready_groups(groups: Iterable[Group], algorithm: str) -> None:
    """Make ready what the transport must have for an algorithm, in one order on all ranks, who all call this.

    Raises:
        UsageError: it has no such thing for these ranks; all groups have been asked by then, so nobody waits for one.
    """
    lacking = []
    for group in sorted(groups, key=lambda group: group.channel):
        if group.size > 1 and not await _is_ready(group, algorithm):
            lacking.append(group)
    if lacking:
        fact = f"this transport has no {algorithm} all-reduce for these ranks (ranks: {lacking[0].ranks})"
        raise UsageError(f"{fact}; choose another --all-reduce, or leave it to auto")


async def _is_ready(group: Group, algorithm: str) -> bool:
    names = names_in(algorithm)
    if "native" in names and group.native is not None:
        await group.native.ready()
    lacks_native = "native" in names and group.native is None
    lacks_memory = "shared" in names and await group.shared() is None
    return not lacks_native and not lacks_memory
