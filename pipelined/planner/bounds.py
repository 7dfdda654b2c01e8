"""Lower bounds of a plan in closed form, on the seconds of a step and the bytes of a rank.

A plan with a bound above the best results so far is not simulated. So a bound must never exceed the simulated value:
the search would miss good plans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from pipelined.planner.candidates import Candidate
from pipelined.planner.planner_model import LayoutSizes
from pipelined.programs.instructions import Program
from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import Stages
from pipelined.sharding.search.problem import Numbers
from pipelined.simulation import Machine, Parameters, Workload
from pipelined.simulation.memory import rank_memory

LeastSeconds = Numbers | float
"""One number, or one of each layout."""


def least_seconds(
    candidate: Candidate,
    workload: Workload,
    machine: Machine,
    all_reduce: str,
    *,
    split_backward: bool,
    moves: Numbers | None = None,
) -> LeastSeconds:
    """A lower bound of the seconds of a step, or one for each layout of the plan's teams.

    With a flush it is the largest over workers of: the forwards of a microbatch up to the worker's first stage, all
    computing of the worker, and the backwards from that stage back to the first one; plus the shortest gradient sum
    and the longest update, which follow one another.
    The last term of backwards is left out if backwards are split, because the worker's last instruction may then be a
    weight half, and no other worker waits for that. A worker also takes part in one sum at a time, and in none before
    it has computed a stage of it. Where ranks share cores, their total time divided by the cores is a bound, too; one
    sum and one update follow it. Without a flush only the computing counts.

    Args:
        split_backward: whether the schedule splits backwards, at some number of microbatches.
        moves: seconds, [layout, stage, (of a microbatch, of a step)]; the workload then has free ones.
    Cost: some µs per stage and pipe, and per stage and 1,000 layouts.
    """
    plan = candidate.plan
    workers = range(candidate.plan.stage_map.workers)
    seconds = _WorkerSeconds(candidate, workload, split_backward, moves)
    busy = [seconds.busy(worker) for worker in workers]
    if not plan.flushes:
        return _maximum(busy)
    sums = _sums(plan, workload, machine, all_reduce)
    ends = [busy[worker] + seconds.travel(worker) for worker in workers]
    ends += [seconds.returned(stage) for stage in range(plan.depth)]
    if machine.shares(plan.world_size):
        ends.append(sum(busy) * plan.width * plan.tensor / machine.cores)
    summed = [seconds.summed(worker, sums) for worker in workers]
    computed = _maximum(ends) + min(sums.values(), default=0.0)
    return np.maximum(computed, _maximum(summed)) + _maximum([seconds.update(worker) for worker in workers])


def least_bytes(candidate: Candidate, workload: Workload) -> float:
    """A lower bound of the bytes of the fullest rank: its state, and one microbatch in its largest stage."""
    stage_map = candidate.plan.stage_map
    return max(
        rank_memory(workload, stage_map, worker, ()).total
        + _one_alive(candidate, workload, stage_map.stages_of(worker))
        for worker in range(stage_map.workers)
    )


def least_bytes_of_layouts(candidate: Candidate, workload: Workload, sizes: LayoutSizes) -> Numbers:
    """As `least_bytes`, of each layout of the plan's teams, less the rounding error of floats.

    Args:
        workload: of the open plan, whose parameters have the same entries.
    """
    stage_map = candidate.plan.stage_map
    held = np.zeros(len(sizes.elements))
    buckets = workload.parameters
    fixed = [_held_bytes(replace(bucket, elements=0)) for bucket in buckets]
    bytes_each = [
        _held_bytes(replace(bucket, elements=1)) - least for bucket, least in zip(buckets, fixed, strict=True)
    ]
    for stages in {tuple(stage_map.stages_of(worker)) for worker in range(stage_map.workers)}:
        total = sizes.activations[:, stages].max(axis=1) / stage_map.pieces + sizes.frozen[:, stages].sum(axis=1)
        for place, bucket in enumerate(buckets):
            if not set(stages).isdisjoint(bucket.stages):
                total += fixed[place] + bytes_each[place] * sizes.elements[:, place]
        held = np.maximum(held, total)
    return held * (1 - 1e-9)


def _held_bytes(bucket: Parameters) -> int:
    """Of a parameter, its gradient, and what the optimizer keeps."""
    return bucket.nbytes + bucket.gradient_bytes + bucket.kept_bytes


def peak_of(candidate: Candidate, workload: Workload, in_time: Program) -> float:
    """The bytes of the fullest rank of a plan with a flush, as its simulation has them, without running it.

    Args:
        in_time: the program of its group with every message in time.
    Cost: one pass over the instructions of the group.
    """
    return max(
        rank_memory(workload, candidate.plan.stage_map, worker, instructions, candidate.recompute).total
        for worker, instructions in enumerate(in_time.workers)
    )


class _WorkerSeconds:
    """Seconds of one group's workers, without waiting: of computing, and of the moves of their teams.

    Args:
        moves: as of `least_seconds`; every result is then one of each layout.
    """

    def __init__(self, candidate: Candidate, workload: Workload, split_backward: bool, moves: Numbers | None):
        self._stage_map = candidate.plan.stage_map
        self._split_backward = split_backward
        recompute = candidate.recompute
        stages = workload.stages
        forward = [stage.seconds("F") for stage in stages]
        backward = [stage.seconds("B", recompute) for stage in stages]
        until_gradient = backward  # the part of a backward that the stage before waits for
        if split_backward:  # some schedules split only some of their backwards, so take the cheaper of both
            inputs = [stage.seconds("I", recompute) for stage in stages]
            halves = [half + stage.seconds("W", recompute) for half, stage in zip(inputs, stages, strict=True)]
            until_gradient = list(map(min, backward, inputs))
            backward = list(map(min, backward, halves))
        pieces = self._stage_map.pieces
        self._forward = [seconds / pieces for seconds in forward]
        self._back = [seconds / pieces for seconds in until_gradient]
        self._moved: Sequence[Any] = [0.0] * len(stages) if moves is None else list(moves[..., 0].T)
        computed = zip(forward, backward, self._moved, strict=True)
        self._each = [(there + back) / pieces + moved for there, back, moved in computed]
        sums: Sequence[Any] = [0.0] * len(stages) if moves is None else list(moves[..., 1].T)
        self._updates = [stage.update + summed for stage, summed in zip(stages, sums, strict=True)]

    def returned(self, stage: int) -> LeastSeconds:
        """The end of a microbatch's backward in a stage, weight half included, after all stages and the way back."""
        seconds = sum(self._forward[:stage]) + sum(self._forward[stage + 1 :]) + sum(self._back[stage + 1 :])
        return self._each[stage] + seconds

    def busy(self, worker: int) -> LeastSeconds:
        microbatches = self._stage_map.microbatches
        return sum(len(microbatches[pipe]) * self._each[stage] for pipe, stage in self._stage_map.held_by(worker))

    def update(self, worker: int) -> LeastSeconds:
        return sum(self._updates[stage] for stage in self._stage_map.stages_of(worker))

    def travel(self, worker: int) -> LeastSeconds:
        """The stages before the worker's first one with a microbatch: there, and back if a worker waits for it."""
        reached = [stage for pipe, stage in self._stage_map.held_by(worker) if self._stage_map.microbatches[pipe]]
        first = min(reached, default=0)
        there = sum(self._forward[:first])
        return there if self._split_backward else there + sum(self._back[:first]) + sum(self._moved[:first])

    def summed(self, worker: int, sums: Mapping[Stages, float]) -> LeastSeconds:
        """The end of a worker's gradient sums, each of which waits for the worker's computing in its stages.

        Args:
            sums: seconds, by the stages that hold what is summed.
        """
        computed = {stage: self._end_of_computing(worker, stage) for stage in self._stage_map.stages_of(worker)}
        starts = list[LeastSeconds]()
        seconds = list[float]()
        for stages, seconds_of_sum in sums.items():
            own = [stage for stage in stages if stage in computed]
            if own:
                starts.append(computed[own[0]])
                seconds.append(seconds_of_sum)
        if not starts:
            return np.zeros(())
        return reduce(np.minimum, starts) + sum(seconds)

    def _end_of_computing(self, worker: int, stage: int) -> LeastSeconds:
        """The end of a worker's computing in one of its stages."""
        pipes = [pipe for pipe, held in self._stage_map.held_by(worker) if held == stage]
        count = sum(len(self._stage_map.microbatches[pipe]) for pipe in pipes)
        busy = sum(self._forward[:stage]) + count * self._each[stage]
        return np.maximum(busy, self.returned(stage)) if count else busy


def _maximum(numbers: Sequence[LeastSeconds]) -> LeastSeconds:
    return reduce(np.maximum, numbers)


def _sums(plan: Plan, workload: Workload, machine: Machine, all_reduce: str) -> dict[Stages, float]:
    """The seconds of each gradient sum; at least one runs after the last instruction."""
    seconds = dict[Stages, float]()
    for bucket in workload.parameters:
        ranks = plan.holders(*bucket.stages)
        seconds[bucket.stages] = machine.sum_seconds(all_reduce, ranks, bucket.sum_bytes) if len(ranks) > 1 else 0.0
    return seconds


def _one_alive(candidate: Candidate, workload: Workload, stages: Sequence[int]) -> float:
    """Activation bytes of one microbatch in the largest stage; with recomputation too they are alive in a backward."""
    return max(workload.stages[stage].activation_bytes for stage in stages) / candidate.plan.stage_map.pieces
