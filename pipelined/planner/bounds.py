"""Lower bounds of a candidate in closed form: the seconds of a training step, and the bytes of a rank.

A candidate with a bound above the best results so far is not simulated. So a bound must never exceed the simulated
value: the search would miss good candidates.
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
"""One number, or one for each layout."""


def least_seconds(
    candidate: Candidate,
    workload: Workload,
    machine: Machine,
    all_reduce: str,
    *,
    split_backward: bool,
    moves: Numbers | None = None,
) -> LeastSeconds:
    """A lower bound of the seconds of a training step, or one for each layout of the plan's teams.

    With a flush it is the largest over workers of: the forwards of a microbatch up to the worker's first stage, all
    computing of the worker, and the backwards from that stage back to stage 0; plus the shortest gradient sum and the
    longest update, which follow one another. With split backwards, leave out the way back to stage 0: the worker's
    last instruction may then be a weight half, and no other worker waits for that. A worker also takes part in one
    gradient sum at a time, and in none before it has computed a stage of it. Where ranks share cores, their total time
    divided by the cores is a bound, too; one gradient sum and one update follow it. Without a flush only the computing
    counts.

    Args:
        split_backward: whether the schedule splits backwards, at some number of microbatches.
        moves: seconds of the teams' moves, [layout, stage, (a microbatch, a step)]; the workload then has free moves.
    Cost: some µs per stage and pipe, and per stage and 1,000 layouts.
    """
    plan = candidate.plan
    workers = range(plan.stage_map.workers)
    seconds = _WorkerSeconds(candidate, workload, split_backward, moves)
    busy = [seconds.busy(worker) for worker in workers]
    if not plan.flushes:
        return _maximum(busy)
    sum_seconds = _sum_seconds(plan, workload, machine, all_reduce)
    computing_ends = [busy[worker] + seconds.seconds_on_the_way(worker) for worker in workers]
    computing_ends += [seconds.microbatch_end(stage) for stage in range(plan.depth)]
    if machine.shares_cores(plan.world_size):
        computing_ends.append(sum(busy) * plan.width * plan.tensor / machine.cores)
    sum_ends = [seconds.end_of_sums(worker, sum_seconds) for worker in workers]
    end = np.maximum(_maximum(computing_ends) + min(sum_seconds.values(), default=0.0), _maximum(sum_ends))
    return end + _maximum([seconds.update(worker) for worker in workers])


def least_bytes(candidate: Candidate, workload: Workload) -> float:
    """A lower bound of the bytes of the fullest rank: its state, and one microbatch in its largest stage."""
    stage_map = candidate.plan.stage_map
    return max(
        rank_memory(workload, stage_map, worker, ()).total
        + _microbatch_bytes(candidate, workload, stage_map.stages_of(worker))
        for worker in range(stage_map.workers)
    )


def least_bytes_of_layouts(candidate: Candidate, workload: Workload, sizes: LayoutSizes) -> Numbers:
    """As `least_bytes`, for each layout of the plan's teams, less the rounding error of floats.

    Args:
        workload: that of the open plan; its parameters have the same entries as a layout's.
    """
    stage_map = candidate.plan.stage_map
    rank_bytes = np.zeros(len(sizes.elements))
    buckets = workload.parameters
    fixed_bytes = [_state_bytes(replace(bucket, elements=0)) for bucket in buckets]
    bytes_of_one = [_state_bytes(replace(bucket, elements=1)) for bucket in buckets]
    for stages in {tuple(stage_map.stages_of(worker)) for worker in range(stage_map.workers)}:
        total = sizes.activations[:, stages].max(axis=1) / stage_map.pieces + sizes.frozen[:, stages].sum(axis=1)
        for index, (bucket, fixed, with_one) in enumerate(zip(buckets, fixed_bytes, bytes_of_one, strict=True)):
            if not set(stages).isdisjoint(bucket.stages):
                total += fixed + (with_one - fixed) * sizes.elements[:, index]
        rank_bytes = np.maximum(rank_bytes, total)
    return rank_bytes * (1 - 1e-9)


def _state_bytes(bucket: Parameters) -> int:
    """Bytes of the parameters, their gradients and the optimizer's state."""
    return bucket.nbytes + bucket.gradient_bytes + bucket.kept_bytes


def peak_bytes(candidate: Candidate, workload: Workload, in_time: Program) -> float:
    """The bytes of the fullest rank of a candidate with a flush, equal to those of its simulation, which is not run.

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
        moves: see `least_seconds`; with moves every result is an array, one number for each layout.
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
        self._backward_to_gradient = [seconds / pieces for seconds in until_gradient]
        no_moves = [0.0] * len(stages)
        self._moves: Sequence[Any] = no_moves if moves is None else list(moves[..., 0].T)
        both_passes = [forward[stage] + backward[stage] for stage in range(len(stages))]
        self._microbatch = [seconds / pieces + move for seconds, move in zip(both_passes, self._moves, strict=True)]
        step_moves: Sequence[Any] = no_moves if moves is None else list(moves[..., 1].T)
        self._updates = [stage.update + move for stage, move in zip(stages, step_moves, strict=True)]

    def microbatch_end(self, stage: int) -> LeastSeconds:
        """The end of a microbatch's backward in a stage, weight half included, after all stages and the way back."""
        back = sum(self._backward_to_gradient[stage + 1 :])
        return self._microbatch[stage] + (sum(self._forward[:stage]) + sum(self._forward[stage + 1 :]) + back)

    def busy(self, worker: int) -> LeastSeconds:
        microbatches = self._stage_map.microbatches
        return sum(len(microbatches[pipe]) * self._microbatch[stage] for pipe, stage in self._stage_map.held_by(worker))

    def update(self, worker: int) -> LeastSeconds:
        return sum(self._updates[stage] for stage in self._stage_map.stages_of(worker))

    def seconds_on_the_way(self, worker: int) -> LeastSeconds:
        """The stages before the worker's first one with a microbatch: the way there, and back if a worker waits."""
        stages = [stage for pipe, stage in self._stage_map.held_by(worker) if self._stage_map.microbatches[pipe]]
        first_stage = min(stages, default=0)
        forwards = sum(self._forward[:first_stage])
        if self._split_backward:
            return forwards
        return forwards + sum(self._backward_to_gradient[:first_stage]) + sum(self._moves[:first_stage])

    def end_of_sums(self, worker: int, sum_seconds: Mapping[Stages, float]) -> LeastSeconds:
        """The end of a worker's gradient sums, each of which waits for the worker's computing in its stages."""
        ends = {stage: self._end_of_computing(worker, stage) for stage in self._stage_map.stages_of(worker)}
        starts = list[LeastSeconds]()
        total = 0.0
        for stages, seconds in sum_seconds.items():
            held_stages = [stage for stage in stages if stage in ends]
            if held_stages:
                starts.append(ends[held_stages[0]])
                total += seconds
        return reduce(np.minimum, starts) + total if starts else np.zeros(())

    def _end_of_computing(self, worker: int, stage: int) -> LeastSeconds:
        """The end of a worker's computing in one of its stages."""
        pipes = [pipe for pipe, pipe_stage in self._stage_map.held_by(worker) if pipe_stage == stage]
        count = sum(len(self._stage_map.microbatches[pipe]) for pipe in pipes)
        busy = sum(self._forward[:stage]) + count * self._microbatch[stage]
        return np.maximum(busy, self.microbatch_end(stage)) if count else busy


def _maximum(numbers: Sequence[LeastSeconds]) -> LeastSeconds:
    return reduce(np.maximum, numbers)


def _sum_seconds(plan: Plan, workload: Workload, machine: Machine, all_reduce: str) -> dict[Stages, float]:
    """The seconds of each gradient sum, by the stages that hold what is summed; one runs after all computing."""
    seconds = dict[Stages, float]()
    for bucket in workload.parameters:
        ranks = plan.holders(*bucket.stages)
        seconds[bucket.stages] = machine.sum_seconds(all_reduce, ranks, bucket.sum_bytes) if len(ranks) > 1 else 0.0
    return seconds


def _microbatch_bytes(candidate: Candidate, workload: Workload, stages: Sequence[int]) -> float:
    """Activation bytes of a microbatch in the largest stage; a backward needs them even with recomputation."""
    return max(workload.stages[stage].activation_bytes for stage in stages) / candidate.plan.stage_map.pieces
