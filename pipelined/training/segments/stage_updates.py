"""The updates of one stage in a segment without a flush: summed and applied when the update rule decides.

Every sum is a task of the actor, and the sums of one bucket run one after another.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from pipelined.programs.updates.bucket_names import Stages
from pipelined.programs.updates.step_totals import StepAccount
from pipelined.programs.updates.update_rule import Apply, Collect, UpdateRule
from pipelined.schedules import StageMap
from pipelined.training.job.rank_context import RankContext
from pipelined.training.segments.versioned_stage import VersionedStage
from pipelined.training.segments.weight_versions import Versions
from pipelined.training.sums.gradient_sums import GradientSums


class UpdateListener:
    """What a rank does after each update of its stage in a segment; this one does nothing."""

    async def after_update(self, updates: int) -> None:
        """Called with the updates so far, before anything uses the new version; it may change the parameters."""


NO_LISTENER = UpdateListener()


@dataclass
class SummedStep(StepAccount):
    """The account of a step with sums of its own.

    Args:
        sums: the tasks of its gradient sums.
        done: set after its last backward, when all its sums have started.
    """

    sums: list["asyncio.Task[torch.Tensor]"] = field(default_factory=list)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self) -> None:
        """Wait until the step's last gradient is computed and summed."""
        await self.done.wait()
        await asyncio.gather(*self.sums)


@dataclass(eq=False, kw_only=True)
class StageUpdates:
    """Carries out the decisions of the update rule for one stage in one segment.

    Args:
        context: the context of the rank.
        stage: the stage.
        stage_map: the stage map of the segment.
        rate: the learning rate of an update, by its number.
        sums: sums a bucket's gradient over its holders.
    """

    context: RankContext
    stage: VersionedStage
    stage_map: StageMap
    rate: Callable[[int], float | None]
    sums: GradientSums
    listener: UpdateListener = NO_LISTENER

    def __post_init__(self) -> None:
        for versions in self.stage.versions.values():
            versions.start_segment()
        oldest = {stages: versions.oldest for stages, versions in self.stage.versions.items()}
        self._rule = UpdateRule(self.stage_map, self.stage.versions, oldest)
        self._gradients: dict[tuple[Stages, int], asyncio.Task[torch.Tensor]] = {}

    async def before_forward(self, microbatch: int, account: StepAccount) -> None:
        """Make the versions for the forward of a microbatch, and keep them for it.

        Args:
            account: of the microbatch's step.
        """
        use = self._rule.before_forward(microbatch)
        for apply in use.applies:
            await self._apply(apply)
        self.stage.acquire(microbatch, use.versions)
        account.staleness[self.stage.index] += use.staleness

    async def after_backward(self, microbatch: int, account: SummedStep) -> None:
        """Release the microbatch's versions; after the last gradient of an update, start its sums."""
        self.stage.release(microbatch)
        decisions = self._rule.after_backward()
        for decision in decisions:
            if isinstance(decision, Collect):
                at_once = Apply(decision.bucket, decision.update) in decisions
                await self._collect(decision, account, at_once)
            else:
                await self._apply(decision)

    async def drain(self) -> None:
        """Apply the remaining updates; no microbatch may be under way."""
        for apply in self._rule.drain():
            await self._apply(apply)

    async def _collect(self, collect: Collect, account: SummedStep, at_once: bool) -> None:
        versions = self.stage.versions[collect.bucket]
        gradient, _, _ = await self.context.executor.run("gradient", lambda: versions.collect(at_once))
        task = self.context.actor.start(self._sum_gradient(versions, gradient, account))
        self._gradients[collect.bucket, collect.update] = task
        account.sums.append(task)

    async def _apply(self, apply: Apply) -> None:
        versions = self.stage.versions[apply.bucket]
        rate = self.rate(apply.update)
        gradient = await self._gradients.pop((apply.bucket, apply.update))
        _, start, end = await self.context.executor.run("update", lambda: versions.update(gradient, rate))
        self.context.tracer.record("step", "step", start, end)
        await self.listener.after_update(apply.update + 1)

    async def _sum_gradient(self, versions: Versions, gradient: torch.Tensor, account: StepAccount) -> torch.Tensor:
        bucket = replace(versions.bucket, gradient=gradient)
        with self.context.executor.doing("a gradient sum"):
            await self.sums.sum(bucket)
        if bucket.owner == self.context.actor.rank:
            squares, _, _ = await self.context.executor.run("norm", bucket.squares)
            account.squares.update(squares)
        return gradient
