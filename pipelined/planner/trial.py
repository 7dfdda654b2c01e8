"""Trials: a few real training steps of each of the best plans, because predictions have errors.

The trials use the `RankTrainer` of real training on random tokens; its results are discarded. Each plan is tried twice,
the second time in reverse order, so that a period of noise does not affect the same plan twice.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from collectives.objects import broadcast_object, gather_objects
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import Executor, TorchExecutor
from pipelined.measurement.measured_model import MeasuredModel
from pipelined.planner.candidates import Candidate
from pipelined.planner.model_costs import require_split_plans
from pipelined.planner.plan_search import SearchResult
from pipelined.process.launch import Launch
from pipelined.process.reporting.progress import Say, say_nothing
from pipelined.programs.plan import Plan
from pipelined.traces.tracer import NullTracer
from pipelined.training.assemble import build_rank
from pipelined.training.job.description import JobDescription
from pipelined.training.rank_trainer import RankTrainer
from transports import Transport

STEPS = 4
"""Steps of a trial; the first is not counted, because it includes one-time work, such as compiling."""


@dataclass(frozen=True)
class RandomTokens:
    """Random data of the right shapes, determined by (step, global microbatch)."""

    vocabulary: int
    shape: tuple[int, int]

    def inputs(self, step: int, microbatch: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(step << 20 | microbatch)
        return torch.randint(self.vocabulary, self.shape, generator=generator)

    targets = inputs


async def try_best(
    transport: Transport,
    model: MeasuredModel,
    launch: Launch,
    result: SearchResult | None,
    *,
    most: int,
    progress: Say = say_nothing,
) -> SearchResult | None:
    """Run the best plans for some steps and sort them by measured time; all ranks call this, rank 0 with the result."""
    outcomes = [] if result is None else result.worth_trying(most)
    found = [[outcome.candidate.plan.to_dict(), outcome.candidate.recompute] for outcome in outcomes]
    plans = await broadcast_object(transport, "worth trying", None if result is None else found)
    chosen = [Candidate(Plan.of(plan), recompute) for plan, recompute in plans]
    executor = TorchExecutor.of_rank(transport, model.numerics().threads, share_devices=launch.share_devices)
    try:
        seconds = await try_plans(transport, model, chosen, executor, progress)
    finally:
        executor.close()
    return None if result is None else result.tried(outcomes, seconds)


async def try_plans(
    transport: Transport, model: MeasuredModel, plans: Sequence[Candidate], executor: Executor, progress: Say
) -> list[float]:
    """Seconds of a step of each plan, the median over steps of the slowest rank's time; an empty list except on rank 0.

    All ranks call this together; plans must have a flush.

    Args:
        executor: runs the computations of this rank.
    Cost: each plan is built twice and runs `STEPS` steps each time.
    """
    taken = [list[float]() for _ in plans]
    order = [*range(len(plans)), *reversed(range(len(plans)))]
    async with Actor(transport) as actor:
        for turn, index in enumerate(order):
            progress(f"trying plan {index + 1} of {len(plans)}")
            taken[index] += await _steps(actor, model, plans[index], executor=executor, first=turn * STEPS)
    return [] if transport.rank else [statistics.median(seconds) for seconds in taken]


def trial_trainer(actor: Actor, model: MeasuredModel, candidate: Candidate, executor: Executor) -> RankTrainer:
    """The trainer of a plan on the data that the model is measured with."""
    plan = candidate.plan
    numerics = model.numerics()
    divided = numerics.shard_optimizer or (plan.tensor > 1 and require_split_plans(model).divides(plan))
    job = JobDescription(
        model=model.build() if plan.tensor == 1 else require_split_plans(model).build_split(plan),
        plan=plan,
        feed=model.feed(plan.rows),
        optimizer_settings=model.optimizer(),
        numerics=replace(numerics, recompute=candidate.recompute, shard_optimizer=divided),
        sequence=model.sequence,
        seed=0,
    )
    return build_rank(actor, job, executor=executor, tracer=NullTracer())


async def _steps(
    actor: Actor, model: MeasuredModel, candidate: Candidate, *, executor: Executor, first: int
) -> list[float]:
    """Seconds of each step except the first: on rank 0 those of the slowest rank, elsewhere this rank's own."""
    trainer = trial_trainer(actor, model, candidate, executor)
    mine = []
    for step in range(first, first + STEPS):
        await broadcast_object(actor.transport, f"try {step}", True)
        mine.append((await trainer.step(step)).step_s)
    everyone = await gather_objects(actor.transport, f"tried {first}", mine[1:])
    return list(map(max, *everyone)) if len(everyone) > 1 else mine[1:]
