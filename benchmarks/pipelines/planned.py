"""One plan run for a few steps, for real or emulated, to be held to what was predicted of it.

The slowest rank's step is timed; memory is counted in a step of its own, because counting takes time. Where devices
only let time pass, a plan trains for real in order to be counted.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from apps.gpt2.planning.model_to_plan import GPT2ToPlan
from benchmarks.pipelines.emulated import EmulatedJob, Load
from benchmarks.pipelines.footprint import count_activations, state_bytes
from collectives import Group, all_reduce, barrier
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import Executor
from pipelined.measurement.measured_costs import NO_CODEC
from pipelined.measurement.timed.codec import CodecCosts
from pipelined.planner.candidates import Candidate
from pipelined.planner.model_costs import FIELDS
from pipelined.planner.trial import trial_trainer
from pipelined.programs.instructions import RECOMPUTED_FORWARD, UPDATE
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.simulation import Parameters, StageCosts, Workload
from pipelined.training.exchange.compression import NONE
from pipelined.training.rank_trainer import RankTrainer

WORLD = 0
"""The channel of what all ranks agree on."""


@dataclass(frozen=True)
class Emulated:
    """A model of alike layers on devices that only let time pass; a planned model and its costs in one.

    Args:
        forward: seconds of a layer's forward of one sequence; a backward takes twice that, each half as much as it.
        late: seconds more that the runtime and a device's waking take for each instruction, measured.
        sent: bytes of a sequence between two layers.
        weights: bytes of a layer's parameters.
    """

    layers: int = 8
    batch: int = 16
    forward: float = 2e-3
    late: float = 0.0
    sent: int = 1 << 16
    weights: int = 1 << 20
    sequence: int = 1
    all_reduce: str = "auto"
    compress: str = NONE
    coding: CodecCosts = NO_CODEC

    @property
    def identity(self) -> dict[str, Any]:
        return {"model": "emulated", "layers": self.layers}

    @property
    def fixed(self) -> dict[str, Any]:
        """Stages must be alike, as a load has one for all; see `suits`."""
        return {}

    @property
    def layer_costs(self) -> list[float]:
        return [1.0] * self.layers

    def suits(self, plan: Plan) -> bool:
        """Whether all stages of a plan have as many layers."""
        return self.layers % plan.depth == 0

    def seconds(self, op: str, layers: range, rows: int) -> float:
        if op == UPDATE:
            return 0.0
        late = 0.0 if op == RECOMPUTED_FORWARD else self.late
        return late + self.forward * len(layers) * rows * (2 if op == "B" else 1)

    def workload(self, plan: Plan) -> Workload:
        cut = partition(self.layer_costs, plan.depth)
        stages = [StageCosts(message_bytes=self.sent * plan.microbatch_size) for _ in cut]
        return Workload(stages, [Parameters((s,), len(part) * self.weights // 4) for s, part in enumerate(cut)])

    def load(self, candidate: Candidate) -> Load:
        """What an emulated job of a plan does."""
        plan, layers = candidate.plan, range(self.layers // candidate.plan.depth)
        exact = replace(self, late=0.0)
        size = plan.microbatch_size
        seconds = {
            field: exact.seconds(op, layers, size)
            for op, field in FIELDS.items()
            if op not in (RECOMPUTED_FORWARD, UPDATE)
        }
        for again in ("backward", "backward_input") if candidate.recompute else ():
            seconds[again] += seconds["forward"]
        gradients = (self.weights * len(layers),) * plan.depth
        return Load(seconds, self.sent * plan.microbatch_size, gradients)


async def emulate(actor: Actor, planned: Emulated, candidate: Candidate, first: int, steps: int) -> list[float]:
    """Seconds of each step of an emulated plan, the first left out; steps are numbered from `first`."""
    job, taken = await asyncio.to_thread(EmulatedJob, actor, candidate.plan, planned.load(candidate)), []
    world = Group(actor.transport, tuple(range(candidate.plan.world_size)), WORLD)
    for step in range(first, first + steps + 1):
        await barrier(world)
        taken.append(await slowest(world, await job.step(step)))
    return taken[1:]


async def train(
    actor: Actor, planned: GPT2ToPlan, candidate: Candidate, executor: Executor, first: int, steps: int
) -> tuple[list[float], int]:
    """Seconds of each step of a plan that trains, and the bytes that this rank then holds."""
    trainer, taken = trial_trainer(actor, planned, candidate, executor), list[float]()
    for step in range(first, first + steps + 2):
        await barrier(trainer.world)
        taken.append(await slowest(trainer.world, (await trainer.step(step)).step_s))
    return taken[2:], await _counted(trainer, first + steps + 2)


async def count(actor: Actor, planned: GPT2ToPlan, candidate: Candidate, executor: Executor, first: int) -> int:
    """The bytes that this rank holds in the second step of a plan that trains; the first makes the optimizer's state.

    Steps are numbered from `first`.
    """
    trainer = trial_trainer(actor, planned, candidate, executor)
    await trainer.step(first)
    return await _counted(trainer, first + 1)


async def _counted(trainer: RankTrainer, step: int) -> int:
    """The bytes that this rank holds at its fullest in a step."""
    kept = count_activations(trainer)
    await trainer.step(step)
    state = state_bytes(trainer.local.parameters.values(), trainer.optimizer)
    return sum(state.values()) + kept.peak_bytes


async def slowest(world: Group, seconds: float) -> float:
    """The most seconds of any rank, on all ranks."""
    array = np.array([seconds])
    await all_reduce(world, array, "max")
    return float(array[0])
