"""A team on devices that only let time pass: each member walks the record of its step, and moves real arrays.

What is emulated is the computing alone, by its operations; every move and every sum of gradients is run, one after
another, as a team that trains runs them.
"""

from collections.abc import Sequence

import numpy as np
import torch

from apps.common.lm.sharded.gpt2 import ShardedGPT2
from benchmarks.harness.punctual import PunctualClock
from benchmarks.pipelines.planned import WORLD, slowest
from collectives import Group, barrier
from pipelined.aio.clock import Clock
from pipelined.planner.candidates import Candidate
from pipelined.planner.planner_model import SplitModel
from pipelined.programs.plan import Plan
from pipelined.sharding import MeshGroups, Path
from pipelined.sharding.operators.stage_record import ComputeStep, StageRecord, piece, record
from pipelined.sharding.operators.tape import Tape, sum_path
from pipelined.sharding.operators.verbs import Value
from transports import Transport

MOVES = 1
"""The channel of a team's moves."""


async def replayed(
    transport: Transport, model: SplitModel, chosen: Sequence[Candidate], *, sequence: int, speed: float, steps: int
) -> list[list[float]]:
    """Seconds of each step of each candidate, the slowest rank's; one pass over all, and one back.

    Args:
        speed: operations a second of a member.
        steps: of each candidate, half of them in either pass; the first of a pass is not counted.
    """
    world, taken = Group(transport, tuple(range(transport.world_size)), WORLD), [list[float]() for _ in chosen]
    for place in [*range(len(chosen)), *reversed(range(len(chosen)))]:
        plan = chosen[place].plan
        network = MeshGroups(transport, MOVES, through_memory=False)  # by what `measure_collectives` times
        member = Member(network, model.build_split(plan), plan, sequence, speed=speed)
        for number in range(1 + steps // 2):
            await barrier(world)
            seconds = await slowest(world, await member.step())
            taken[place] += [seconds] if number else []
    return taken


class Member:
    """One member of a team that trains by a plan of one stage.

    Args:
        speed: operations a second.
        clock: waits; None: the real one.
    """

    def __init__(
        self,
        network: MeshGroups,
        model: ShardedGPT2,
        plan: Plan,
        sequence: int,
        *,
        speed: float,
        clock: Clock | None = None,
    ):
        self._network, self._speed, self._clock = network, speed, clock or PunctualClock()
        found = recorded(model, network.rank, (plan.microbatch_size, sequence))
        phases = [found.forward] * plan.microbatches + [found.backward] * plan.microbatches
        self._steps = [step for phase in phases for step in phase.steps]
        self._sums = [sum_path(shards) for shards in model.parameters().values()]
        self._arrays = dict[tuple[int, ...], np.ndarray]()

    async def step(self) -> float:
        """Walk a step; returns its seconds on this rank."""
        start, computing = self._clock.now(), 0.0
        for step in self._steps:
            if isinstance(step, ComputeStep):
                computing += step.operations / self._speed
                continue
            await self._clock.sleep(computing)
            computing = 0.0
            await self._carry(step.path)
        await self._clock.sleep(computing)
        for path in self._sums:
            await self._carry(path)
        return self._clock.now() - start

    async def _carry(self, path: Path) -> None:
        if path.steps:
            shape = path.source.shape(self._network.rank)
            if shape not in self._arrays:
                self._arrays[shape] = np.ones(shape, np.float32)
            await path.run(self._network, self._arrays[shape])


def recorded(model: ShardedGPT2, rank: int, lead: tuple[int, int]) -> StageRecord:
    """What a member does with one microbatch, from ids to the loss and back.

    Args:
        lead: sequences, and tokens of each.
    """
    shards, layouts = model.input_shards(lead), model.parameters()
    ids = Value(piece(rank, shards, torch.int64, trained=False), shards, False)
    pieces = {name: piece(rank, each, torch.float32) for name, each in layouts.items()}

    async def stage(tape: Tape) -> Value:
        return await model.score(tape, await model.run_layers(tape, range(model.layers), ids, pieces), ids)

    return record(rank, stage)
