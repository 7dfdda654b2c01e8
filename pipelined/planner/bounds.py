"""Lower bounds of a plan in closed form, on the seconds of a step and the bytes of a rank.

A plan with a bound above the best results so far is not simulated. So a bound must never exceed the simulated value:
the search would miss good plans.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pipelined.planner.candidates import Candidate
from pipelined.planner.planned_model import LayoutSizes
from pipelined.programs.instructions import Program
from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import Stages
from pipelined.simulation import Machine, Parameters, Workload
from pipelined.simulation.memory import rank_memory

Moves = NDArray[np.float64]


def least_seconds(
    candidate: Candidate, workload: Workload, machine: Machine, all_reduce: str, *, split_backward: bool
) -> float:
    """A lower bound of the seconds of a step.

    With a flush it is the largest over workers of: the forwards of a microbatch up to the worker's first stage, all
    computing of the worker, and the backwards from that stage back to the first one; plus the shortest gradient sum
    and the longest update, which follow one another.
    The last term of backwards is left out if backwards are split, because the worker's last instruction may then be a
    weight half, and no other worker waits for that. A worker also takes part in one sum at a time, and in none before
    it has computed a stage of it. Without a flush only the computing counts.

    Args:
        split_backward: whether the schedule splits backwards, at some number of microbatches.
    Cost: some µs per stage and pipe.
    """
    plan = candidate.plan
    spent = _Spent(candidate, workload, split_backward)
    if not plan.flushes:
        return max(map(spent.busy, range(plan.stage_map.workers)))
    longest = max(
        spent.busy(worker) + spent.way_there(worker) + (0.0 if split_backward else spent.way_back(worker))
        for worker in range(plan.stage_map.workers)
    )
    everything = sum(map(spent.busy, range(plan.stage_map.workers))) * plan.width * plan.tensor
    shared = everything / machine.cores if machine.shares(plan.world_size) else 0.0
    held = map(plan.stage_map.stages_of, range(plan.stage_map.workers))
    updates = (sum(workload.stages[stage].update for stage in stages) for stages in held)
    sums = _sums(plan, workload, machine, all_reduce)
    summed = max(float(spent.summed(worker, sums)) for worker in range(plan.stage_map.workers))
    computed = max(longest, *map(spent.returned, range(plan.depth)), shared) + min(sums.values(), default=0.0)
    return max(computed, summed) + max(updates)


def least_of_layouts(
    candidate: Candidate, workload: Workload, machine: Machine, all_reduce: str, *, moves: Moves, split_backward: bool
) -> NDArray[np.float64]:
    """A lower bound of the seconds of a step for each layout of the plan's teams: a worker computes, moves and updates.

    Where ranks share cores, all of that together takes its share of them, and one more update follows.

    Args:
        workload: with free moves.
        moves: seconds, [layout, stage, (of a microbatch, of a step)].
        split_backward: as of `least_seconds`.
    Cost: some µs per stage and 1,000 layouts.
    """
    plan, stage_map = candidate.plan, candidate.plan.stage_map
    spent, least = _Spent(candidate, workload, split_backward), np.zeros(len(moves))
    sums = _sums(plan, workload, machine, all_reduce)
    shortest = min(sums.values(), default=0.0)
    returned = np.maximum.reduce([spent.returned(stage) + moves[:, stage, 0] for stage in range(plan.depth)])
    everything, longest = np.zeros(len(moves)), np.zeros(len(moves))
    for worker in range(stage_map.workers):
        moved = np.zeros(len(moves))
        for pipe, stage in stage_map.held_by(worker):
            moved += len(stage_map.microbatches[pipe]) * moves[:, stage, 0]
        everything += spent.busy(worker) + moved
        times = moved + spent.busy(worker) + spent.way_there(worker)
        times += 0.0 if split_backward else spent.way_back(worker)
        if not split_backward:  # a microbatch comes through the stages before, and its gradient goes back through them
            times += moves[:, : spent.first_of(worker), 0].sum(axis=1)
        times = np.maximum(np.maximum(times, returned) + shortest, spent.summed(worker, sums, moves))
        stages = stage_map.stages_of(worker)
        update = moves[:, stages, 1].sum(axis=1) + sum(workload.stages[stage].update for stage in stages)
        least, longest = np.maximum(least, times + update), np.maximum(longest, update)
    if not machine.shares(plan.world_size):
        return least
    return np.maximum(least, everything * plan.width * plan.tensor / machine.cores + shortest + longest)


def least_bytes(candidate: Candidate, workload: Workload) -> float:
    """A lower bound of the bytes of the fullest rank: its state, and one microbatch in its largest stage."""
    stage_map = candidate.plan.stage_map
    return max(
        rank_memory(workload, stage_map, worker, ()).total
        + _one_alive(candidate, workload, stage_map.stages_of(worker))
        for worker in range(stage_map.workers)
    )


def least_bytes_of_layouts(candidate: Candidate, workload: Workload, sizes: LayoutSizes) -> NDArray[np.float64]:
    """As `least_bytes`, of each layout of the plan's teams, less what numbers with a point may be off.

    Args:
        workload: of the open plan, whose parameters have the same entries.
    """
    stage_map, held = candidate.plan.stage_map, np.zeros(len(sizes.elements))
    groups = workload.parameters
    bytes_of = [[_held_bytes(replace(bucket, elements=number)) for number in (0, 1)] for bucket in groups]
    for stages in {tuple(stage_map.stages_of(worker)) for worker in range(stage_map.workers)}:
        total = sizes.activations[:, stages].max(axis=1) / stage_map.pieces + sizes.frozen[:, stages].sum(axis=1)
        for place, (bucket, (none, one)) in enumerate(zip(groups, bytes_of, strict=True)):
            if not set(stages).isdisjoint(bucket.stages):
                total += none + (one - none) * sizes.elements[:, place]
        held = np.maximum(held, total)
    return held * (1 - 1e-9)


def _held_bytes(bucket: Parameters) -> int:
    """Of a parameter, its gradient, and what the optimizer keeps."""
    return bucket.nbytes + bucket.gradient_bytes + bucket.kept_bytes


def peak_of(candidate: Candidate, workload: Workload, prompt: Program) -> float:
    """The bytes of the fullest rank of a plan with a flush, as its simulation has them, without running it.

    Args:
        prompt: the program of its group with every message in time.
    Cost: one pass over the instructions of the group.
    """
    return max(
        rank_memory(workload, candidate.plan.stage_map, worker, instructions, candidate.recompute).total
        for worker, instructions in enumerate(prompt.workers)
    )


class _Spent:
    """Seconds of computing of one group's workers, without waiting."""

    def __init__(self, candidate: Candidate, workload: Workload, split_backward: bool):
        self._stage_map, again = candidate.plan.stage_map, candidate.recompute
        self._forward = [stage.seconds("F") for stage in workload.stages]
        self._backward = [stage.seconds("B", again) for stage in workload.stages]
        self._back = self._backward
        if split_backward:  # some schedules split only some of their backwards, so take the cheaper of both
            halves = [stage.seconds("I", again) + stage.seconds("W", again) for stage in workload.stages]
            self._backward = list(map(min, self._backward, halves))
            self._back = [min(stage.seconds("I", again), stage.seconds("B", again)) for stage in workload.stages]

    def returned(self, stage: int) -> float:
        """The end of a microbatch's backward in a stage, weight half included, after all stages and the way back."""
        way = sum(self._forward) + sum(self._back[stage + 1 :])
        return (way + self._backward[stage]) / self._stage_map.pieces

    def busy(self, worker: int) -> float:
        return (
            sum(
                len(self._stage_map.microbatches[pipe]) * (self._forward[stage] + self._backward[stage])
                for pipe, stage in self._stage_map.held_by(worker)
            )
            / self._stage_map.pieces
        )

    def way_there(self, worker: int) -> float:
        return self._least(worker, self._forward)

    def way_back(self, worker: int) -> float:
        return self._least(worker, self._back)

    def first_of(self, worker: int) -> int:
        """The worker's first stage with a microbatch."""
        reached = [stage for pipe, stage in self._stage_map.held_by(worker) if self._stage_map.microbatches[pipe]]
        return min(reached, default=0)

    def summed(self, worker: int, sums: Mapping[Stages, float], moves: Moves | None = None) -> Moves:
        """The end of a worker's gradient sums, each of which waits for the worker's computing in its stages.

        Args:
            sums: seconds, by the stages that hold what is summed.
            moves: as of `least_of_layouts`; the result is then one of each layout.
        """
        held, computed = self._stage_map.held_by(worker), dict[int, Moves]()
        for stage in {stage for _, stage in held}:
            number = sum(len(self._stage_map.microbatches[pipe]) for pipe, other in held if other == stage)
            moved = np.zeros(()) if moves is None else moves[:, stage, 0]
            each = self._forward[stage] + self._backward[stage]
            busy = (sum(self._forward[:stage]) + number * each) / self._stage_map.pieces + number * moved
            computed[stage] = np.maximum(busy, self.returned(stage) + moved) if number else busy
        own = [stages for stages in sums if not computed.keys().isdisjoint(stages)]
        if not own:
            return np.zeros(())
        first = [computed[next(stage for stage in stages if stage in computed)] for stages in own]
        return np.minimum.reduce(first) + sum(sums[stages] for stages in own)

    def _least(self, worker: int, seconds: Sequence[float]) -> float:
        """The seconds of the stages before the worker's first stage with a microbatch."""
        return sum(seconds[: self.first_of(worker)]) / self._stage_map.pieces


def _sums(plan: Plan, workload: Workload, machine: Machine, all_reduce: str) -> dict[Stages, float]:
    """The seconds of each gradient sum; at least one runs after the last instruction."""
    found = dict[Stages, float]()
    for bucket in workload.parameters:
        ranks = plan.holders(*bucket.stages)
        found[bucket.stages] = machine.sum_seconds(all_reduce, ranks, bucket.sum_bytes) if len(ranks) > 1 else 0.0
    return found


def _one_alive(candidate: Candidate, workload: Workload, stages: Sequence[int]) -> float:
    """Activation bytes of one microbatch in the largest stage; with recomputation too they are alive in a backward."""
    return max(workload.stages[stage].activation_bytes for stage in stages) / candidate.plan.stage_map.pieces
