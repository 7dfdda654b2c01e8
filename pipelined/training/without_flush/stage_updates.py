"""The updates of one stage in a segment without a flush: when each bucket's gradient is summed, and when it is applied.

Weights of one stage only are updated before the stage does anything else. Weights that several stages share (a tied
embedding) must be the same on all of them, whatever the timing: for these a microbatch uses a version that depends only
on its number, and updates wait until that version is needed. Every sum is a task of the actor, and the sums of one
bucket run one after another.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from pipelined.programs.staleness import shared_version
from pipelined.schedules import StageMap
from pipelined.training.gradient_sums import GradientSums
from pipelined.training.parameters import Bucket
from pipelined.training.without_flush.versioned_stage import VersionedStage
from pipelined.training.without_flush.versions import Versions
from pipelined.training.worker import RankContext


@dataclass
class StepAccount:
    """This rank's contributions to the numbers of one step on which all ranks agree.

    Args:
        squares: squared gradient norms of owned parameters, summed over the step's updates.
        staleness: staleness summed over the step's microbatches.
    """

    squares: Counter[str] = field(default_factory=Counter)
    staleness: int = 0
    sums: list["asyncio.Task[torch.Tensor]"] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self) -> None:
        """Wait until the step's last gradient is computed and summed."""
        await self.done.wait()
        await asyncio.gather(*self.sums)


class StageUpdates:
    """One stage's updates in one segment.

    Args:
        context: the context of the rank.
        held: the stage.
        layout: the layout of the segment.
        rate: the learning rate of an update, by its number.
        sums: sums a bucket's gradient over its holders.
        account: returns the account of a microbatch's step.
    """

    def __init__(
        self,
        *,
        context: RankContext,
        held: VersionedStage,
        layout: StageMap,
        rate: Callable[[int], float],
        sums: GradientSums,
        account: Callable[[int], StepAccount],
    ):
        self._context, self._held, self._rate, self._sums, self._account = context, held, rate, sums, account
        self._updates = layout.updates
        self._depth, self._backwards = layout.depth, 0
        self._waiting: list[deque[asyncio.Task[torch.Tensor]]] = [deque() for _ in held.versions]
        for versions in held.versions:
            versions.begin()

    async def before_forward(self, microbatch: int) -> None:
        """Make the versions for the forward of a microbatch, and lend them to it."""
        chosen = [await self._make(number, microbatch) for number in range(len(self._held.versions))]
        self._held.lend(microbatch, chosen)
        own = sorted((len(v.bucket.stages) > 1, n) for n, v in enumerate(self._held.versions))
        if own:  # a stage with nothing to train has no delay
            number = own[0][1]
            version = max(chosen[number], self._held.versions[number].oldest)
            self._account(microbatch).staleness += microbatch // self._updates.every - version

    async def after_backward(self, microbatch: int) -> None:
        """Take the microbatch's versions back; after the last gradient of an update, start its sums."""
        self._held.give_back(microbatch)
        self._backwards += 1
        if self._backwards % self._updates.every:
            return
        for versions, waiting in zip(self._held.versions, self._waiting, strict=True):
            gradient, _, _ = await self._context.device.run("step", versions.collect)
            waiting.append(self._context.actor.start(self._summed(versions, gradient, self._account(microbatch))))
            self._account(microbatch).sums.append(waiting[-1])
            if self._follows_order(versions):
                await self._advance(versions, waiting, versions.newest + len(waiting))

    async def drain(self) -> None:
        """Apply the remaining updates; no microbatch may be under way."""
        for versions, waiting in zip(self._held.versions, self._waiting, strict=True):
            await self._advance(versions, waiting, versions.newest + len(waiting))

    def _follows_order(self, versions: Versions) -> bool:
        """Whether forwards use the newest version, instead of a version that depends only on their number."""
        return self._updates.delay is None and len(versions.bucket.stages) == 1

    async def _make(self, number: int, microbatch: int) -> int:
        versions = self._held.versions[number]
        if self._follows_order(versions):
            return versions.newest
        behind = self._depth - 1 - versions.bucket.stages[0]
        wanted = shared_version(self._updates, microbatch, behind)
        await self._advance(versions, self._waiting[number], wanted)
        return wanted

    async def _advance(self, versions: Versions, waiting: "deque[asyncio.Task[torch.Tensor]]", newest: int) -> None:
        """Apply updates in order, until this version exists."""
        while versions.newest < newest:
            gradient, rate = await waiting.popleft(), self._rate(versions.newest)
            run = self._context.device.run("step", lambda: versions.update(gradient, rate))  # noqa: B023 (awaited at once)
            _, start, end = await run
            self._context.tracer.record("step", "step", start, end, (-1, -1, -1, -1))

    async def _summed(self, versions: Versions, gradient: torch.Tensor, account: StepAccount) -> torch.Tensor:
        bucket = replace(versions.bucket, gradient=gradient)
        await self._sums.sum(bucket)
        if bucket.owner == self._context.actor.rank:
            squares, _, _ = await self._context.device.run("norm", lambda: _squares(bucket))
            account.squares.update(squares)
        return gradient


def _squares(bucket: Bucket) -> dict[str, float]:
    """The squared norm of each parameter's gradient, in float64."""
    sizes = [parameter.numel() for parameter in bucket.parameters.values()]
    norms = [torch.linalg.vector_norm(piece, dtype=torch.float64) for piece in bucket.gradient.split(sizes)]
    return {name: float(norm) ** 2 for name, norm in zip(bucket.parameters, norms, strict=True)}
