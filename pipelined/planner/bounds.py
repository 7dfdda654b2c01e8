"""Closed-form bounds of a plan: no step is shorter, and no rank holds less. What cannot win need not be simulated.

The rule: never above what the simulator finds.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from collectives.all_reduce import known
from pipelined.planner.candidates import Candidate
from pipelined.programs.plan import Plan
from pipelined.programs.record import record
from pipelined.schedules import ScheduleError, Shape, find
from pipelined.simulation.machine import Machine
from pipelined.simulation.memory import rank_memory
from pipelined.simulation.workload import Workload


def least_seconds(candidate: Candidate, workload: Workload, machine: Machine, all_reduce: str) -> float:
    """A step takes at least this.

    A worker begins when a microbatch has come down to the first of its stages that is reached, computes all that is its
    own, and then a gradient goes on up to the first stage; where backwards are split its last may be a weight half,
    which nobody waits for. Then comes at least the shortest sum of its stages. Without a flush it only computes.
    Cost: some µs a stage and pipe.
    """
    plan, parts, split = candidate.plan, candidate.plan.layout.parts, splits(candidate.plan)
    spent = _Spent(candidate, workload, split)
    if plan.layout.updates is not None:
        return max(map(spent.busy, range(plan.layout.workers)))
    longest = max(
        spent.busy(worker) + spent.way_there(worker) + (0.0 if split else spent.way_back(worker))
        for worker in range(plan.layout.workers)
    )
    everything = sum(map(spent.busy, range(plan.layout.workers))) * plan.width
    shared = everything / machine.cores if machine.shares(plan.world_size) else 0.0
    return max(longest, spent.microbatch / parts, shared) + _least_sum(plan, workload, machine, all_reduce)


def least_bytes(candidate: Candidate, workload: Workload) -> float:
    """The fullest rank holds at least this: its state, and one microbatch of the most it keeps of one."""
    plan = candidate.plan
    held = [set(plan.layout.stages_of(worker)) for worker in range(plan.layout.workers)]
    return max(rank_memory(workload, stages, ()).total + _one_alive(candidate, workload, stages) for stages in held)


def splits(plan: Plan) -> bool:
    """Whether the schedule splits backwards in halves; one that does so by the gaps it finds, at any number of them."""
    shapes = (replace(plan.shape, microbatches=number) for number in (1, plan.depth, 2 * plan.depth))
    return any(_splits(plan.schedule, shape) for shape in shapes)


@cache
def _splits(name: str, shape: Shape) -> bool:
    try:
        program = record(find(name), shape)
    except ScheduleError:  # not at this number
        return False
    return any(instruction.op == "W" for worker in program.workers for instruction in worker)


class _Spent:
    """Seconds of computing of one group's workers, free of waiting."""

    def __init__(self, candidate: Candidate, workload: Workload, split: bool):
        self._layout, again = candidate.plan.layout, candidate.recompute
        self._forward = [stage.seconds("F") for stage in workload.stages]
        self._backward = [stage.seconds("B", again) for stage in workload.stages]
        self._back = self._backward
        if split:  # some schedules split only some
            halves = [stage.seconds("I", again) + stage.seconds("W", again) for stage in workload.stages]
            self._backward = list(map(min, self._backward, halves))
            self._back = [min(stage.seconds("I", again), stage.seconds("B", again)) for stage in workload.stages]
        self.microbatch = sum(self._forward) + sum(self._back)

    def busy(self, worker: int) -> float:
        return (
            sum(
                len(self._layout.microbatches[pipe]) * (self._forward[stage] + self._backward[stage])
                for pipe, stage in self._layout.held_by(worker)
            )
            / self._layout.parts
        )

    def way_there(self, worker: int) -> float:
        return self._least(worker, self._forward)

    def way_back(self, worker: int) -> float:
        return self._least(worker, self._back)

    def _least(self, worker: int, seconds: Sequence[float]) -> float:
        """What lies before the first of its stages that has any microbatch."""
        reached = [stage for pipe, stage in self._layout.held_by(worker) if self._layout.microbatches[pipe]]
        return min((sum(seconds[:stage]) for stage in reached), default=0.0) / self._layout.parts


def _least_sum(plan: Plan, workload: Workload, machine: Machine, all_reduce: str) -> float:
    """The cheapest of the sums that some rank has to make: one of them comes after its last instruction."""
    cheapest = []
    for group in workload.parameters:
        ranks = plan.holders(*group.stages)
        links = machine.links(ranks)
        cheapest.append(known(all_reduce).cost(len(ranks), group.nbytes, links.alpha, links.beta, links.gamma))
    return min(cheapest, default=0.0)


def _one_alive(candidate: Candidate, workload: Workload, stages: set[int]) -> float:
    """A recomputed forward is alive whole while its backward runs."""
    return max(workload.stages[stage].activation_bytes for stage in stages) / candidate.plan.layout.parts
