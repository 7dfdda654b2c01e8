"""One rank of a job on devices that only let time pass: the real worker, messages, sums and transport.

Nothing is computed, everything else is done. Steps are numbered over all jobs of a process, because a message has the
number of its step.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.harness.punctual import PunctualClock
from benchmarks.harness.timed_executor import TimedExecutor
from collectives import Group, barrier
from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.actor import Actor
from pipelined.programs.overlap import SUM_STARTS
from pipelined.programs.plan import Plan
from pipelined.programs.prepare import Prepared, prepare_group
from pipelined.programs.updates.sum_starts import SumStarts
from pipelined.random.keyed_random import KeyedRandom
from pipelined.traces.tracer import NullTracer
from pipelined.training.exchange.parcels import Parcel
from pipelined.training.job.rank_context import RankContext
from pipelined.training.segments.replay import follow_order
from pipelined.training.segments.worker import TrainWorker
from pipelined.training.sums.bucket import Bucket
from pipelined.training.sums.gradient_sums import GradientSums
from transports import Nursery

FIRST_CHANNEL = 1
"""The bare-buffer channel of the first stage's sums; the one before is the world's."""


@dataclass(frozen=True)
class Load:
    """What one microbatch costs in every stage; a schedule that halves its microbatches halves all of it.

    Args:
        seconds: of each op, by the name that a device knows it by.
        activation_bytes: of each activation and each gradient between stages.
        gradient_bytes: of each stage's parameters, multiples of 4; empty leaves the sums out.
    """

    seconds: Mapping[str, float]
    activation_bytes: int = 0
    gradient_bytes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Hollow:
    """A stage with the right sizes and nothing to compute: random bytes, made once."""

    activation: np.ndarray
    last: bool

    def forward(self, which: tuple[int, int], x: Any, random: KeyedRandom, targets: Any = None) -> Parcel:
        return Parcel((0.0 if self.last else self.activation,))

    def backward(
        self, which: tuple[int, int], gradient: Any, scale: float, random: KeyedRandom, targets: Any = None
    ) -> Parcel:
        return Parcel((self.activation,))

    backward_input = backward

    def backward_weight(self, which: tuple[int, int]) -> None:
        return None


class NoFeed:
    """Stands in for data that no device reads."""

    def inputs(self, step: int, microbatch: int) -> int:
        return microbatch

    targets = inputs


class EmulatedJob:
    """One rank of a plan; it must be one of the plan's.

    Args:
        plan: its ranks are the first of the actor's world.
        recorded: follow the order a dynamic schedule has with free messages, whenever messages come.
    Raises:
        ScheduleError: the schedule is no good, as `pipelined.programs.prepare.prepare` says.
    """

    def __init__(self, actor: Actor, plan: Plan, load: Load, recorded: bool = False):
        self.plan, self._actor, self._recorded = plan, actor, recorded
        self._prepared = {sync: prepare_group(plan, sync)[plan.group_and_worker(actor.rank)[1]] for sync in SUM_STARTS}
        pieces = plan.stage_map.pieces
        executor = TimedExecutor({op: seconds / pieces for op, seconds in load.seconds.items()}, PunctualClock())
        random = np.random.default_rng(actor.rank)
        activation = random.integers(0, 256, load.activation_bytes // pieces, np.uint8)
        stages = {stage: Hollow(activation, stage == plan.depth - 1) for stage in plan.stages_of(actor.rank)}
        self._context = RankContext(actor, plan, stages, executor, NoFeed(), NullTracer(), seed=0)
        self._buckets = [
            Bucket((stage,), plan.holders(stage), {}, torch.full((load.gradient_bytes[stage] // 4,), 0.0))
            for stage in (stages if load.gradient_bytes else ())
        ]
        self._groups = {b.stages: Group(actor.transport, b.holders, FIRST_CHANNEL + b.stages[0]) for b in self._buckets}

    async def step(
        self,
        number: int,
        sync: str = "gap",
        algorithm: str = "auto",
        summed: Collection[int] | None = None,
    ) -> float:
        """Run the schedule once and finish the sums; returns this rank's seconds.

        Args:
            number: not yet given to any job of this process; the same on all ranks.
            sync: when a stage's sum starts, one of `overlap.SUM_STARTS`.
            algorithm: of the sums.
            summed: the stages that are summed at all, the same on all ranks; every one if not given.
        """
        start = self._context.executor.clock.now()
        prepared = self._prepared[sync]
        sums = self._sums(prepared, algorithm, summed)
        order = prepared.instructions
        async with Nursery() as queue:
            worker = TrainWorker(self._context, number, sums, order, instructions=queue)
            await (follow_order(worker, order) if self._recorded else prepared.schedule.schedule(worker))
        await sums.finish()
        return self._context.executor.clock.now() - start

    async def sums(self, algorithm: str = "auto", summed: Collection[int] | None = None) -> float:
        """Make the step's sums and nothing else; returns this rank's seconds."""
        start = self._context.executor.clock.now()
        await self._sums(self._prepared["after"], algorithm, summed).finish()
        return self._context.executor.clock.now() - start

    def _sums(self, prepared: Prepared, algorithm: str, summed: Collection[int] | None) -> SumStarts[Bucket]:
        return SumStarts(
            self._actor,
            [bucket for bucket in self._buckets if summed is None or bucket.stages[0] in summed],
            GradientSums(self._groups, algorithm).sum,
            prepared.instructions,
        )


async def slowest_of(actor: Actor, number: int, work: Callable[[int], Awaitable[float]] | None) -> float:
    """Let all ranks begin something together; returns the slowest's seconds on rank 0, and 0 elsewhere.

    A rank that is done, or takes no part (None), waits for a message, so that it does not poll while others compute.
    """
    await barrier(Group(actor.transport, tuple(range(actor.transport.world_size)), 0))
    seconds = await work(number) if work else 0.0
    everyone = await gather_objects(actor.transport, f"work {number}", seconds)
    await broadcast_object(actor.transport, f"work {number} is over", True)
    return max(everyone, default=0.0)
