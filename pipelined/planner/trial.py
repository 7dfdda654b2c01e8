"""Trials: a few real training steps of each of the best candidates, because predictions have errors.

The trials use the `RankTrainer` of real training on random tokens; its results are discarded. Each candidate is tried
twice, the second time in reverse order, so that a period of noise does not affect the same candidate twice.
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
"""Training steps of a trial; the first is not counted: it includes one-time work, such as compiling."""


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
    """Run the best candidates for some steps; sort by measured time. All ranks call this, rank 0 with the result."""
    outcomes = [] if result is None else result.worth_trying(most)
    documents = [[outcome.candidate.plan.to_dict(), outcome.candidate.recompute] for outcome in outcomes]
    received = await broadcast_object(transport, "worth trying", None if result is None else documents)
    candidates = [Candidate(Plan.of(plan), recompute) for plan, recompute in received]
    executor = TorchExecutor.of_rank(transport, model.numerics().threads, share_devices=launch.share_devices)
    try:
        seconds = await try_candidates(transport, model, candidates, executor, progress)
    finally:
        executor.close()
    return None if result is None else result.with_trials(outcomes, seconds)


async def try_candidates(
    transport: Transport, model: MeasuredModel, candidates: Sequence[Candidate], executor: Executor, progress: Say
) -> list[float]:
    """Seconds of a training step of each candidate: the median over steps of the slowest rank's; only on rank 0.

    All ranks call this together; the candidates must have a flush.

    Args:
        executor: runs the computations of this rank.
    Cost: each candidate is built twice and runs `STEPS` steps each time.
    """
    seconds = [list[float]() for _ in candidates]
    indices = range(len(candidates))
    async with Actor(transport) as actor:
        for trial, index in enumerate([*indices, *reversed(indices)]):
            progress(f"trying plan {index + 1} of {len(candidates)}")
            seconds[index] += await _step_seconds(actor, model, candidates[index], executor, trial * STEPS)
    return [] if transport.rank else [statistics.median(step_seconds) for step_seconds in seconds]


def trial_trainer(actor: Actor, model: MeasuredModel, candidate: Candidate, executor: Executor) -> RankTrainer:
    """The trainer of a candidate on the data that the model is measured with."""
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


async def _step_seconds(
    actor: Actor, model: MeasuredModel, candidate: Candidate, executor: Executor, first_step: int
) -> list[float]:
    """Seconds of each training step but the first: the slowest rank's on rank 0, elsewhere this rank's own."""
    trainer = trial_trainer(actor, model, candidate, executor)
    seconds = []
    for step in range(first_step, first_step + STEPS):
        await broadcast_object(actor.transport, f"try {step}", True)
        seconds.append((await trainer.step(step)).step_s)
    by_rank = await gather_objects(actor.transport, f"tried {first_step}", seconds[1:])
    return list(map(max, *by_rank)) if len(by_rank) > 1 else seconds[1:]
