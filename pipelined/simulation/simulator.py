"""The simulator: one whole step of a job on a described machine, with one coroutine per worker on the virtual clock.

It runs the code of training: the schedule's own coroutine, the trainer's own order of gradient sums, and its update
rule. Only computing, sending and summing are replaced by the seconds that they cost on the machine. A step with a flush
is: run the schedule, finish the gradient sums, sum the step totals (loss, norm) over all ranks, update. Without a flush
steps overlap, so a segment is run that is long enough to show how they repeat.

The members of a team are folded into one: all have the same stages, instructions and costs, and meet at every move, so
that one coroutine stands for them. Where a node ends inside a team, its slowest member's links count.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.programs.plan import Plan
from pipelined.programs.prepare import Prepared, prepare_group
from pipelined.programs.pricing.steady import steady_step
from pipelined.programs.pricing.timeline import Timed, Timeline
from pipelined.programs.pricing.virtual_worker import CostCache, GroupMessages
from pipelined.programs.recording import record_in_time
from pipelined.programs.updates.step_totals import STEP_TOTALS
from pipelined.schedules import find
from pipelined.simulation.cores import VirtualCores
from pipelined.simulation.job import SimulatedJob
from pipelined.simulation.machine import Machine
from pipelined.simulation.memory import RankMemory, program_memory
from pipelined.simulation.rank import FlushedRank, GroupPlatform, Hardware, OverlappingRank, Rank
from pipelined.simulation.traffic import Link, link_bytes
from pipelined.simulation.virtual_links import VirtualLinks
from pipelined.simulation.virtual_sums import Sum, VirtualSums
from pipelined.simulation.workload import Workload
from transports import Nursery

T = TypeVar("T")


@dataclass(frozen=True)
class Simulated:
    """The result of a simulated step; without a flush, of one step among many that overlap.

    Args:
        plan: the simulated arrangement.
        groups: the timeline of each pipeline group; without a flush it covers a whole segment.
        sums: the gradient sums of the step, in the order in which all their ranks had joined; empty without a flush.
        step_s: the time at which the last rank has updated its parameters; without a flush the mean seconds of a step
            in the full pipe.
        memory: the peak bytes of each rank.
        traffic: bytes by (from rank, to rank).
        steps: the number of steps in `groups`.
    """

    plan: Plan
    groups: tuple[Timeline, ...]
    sums: tuple[Sum, ...]
    step_s: float
    memory: tuple[RankMemory, ...]
    traffic: Mapping[Link, int]
    steps: int = 1

    @property
    def makespan(self) -> float:
        """Seconds until the last backward of all groups has ended; without a flush `step_s`."""
        if not self.plan.flushes:
            return self.step_s
        return max(timeline.makespan for timeline in self.groups)

    @property
    def exposed_sums(self) -> float:
        """Seconds of gradient sums after the last backward."""
        return max([0.0, *(sum_.end - self.makespan for sum_ in self.sums)])

    @property
    def busy(self) -> list[float]:
        """Seconds per step that each rank spends in forwards and backwards."""
        workers = [worker for group in self.groups for worker in group.workers]
        busy = [sum(timed.end - timed.start for timed in worker) / self.steps for worker in workers]
        return self.per_rank(busy)

    @property
    def bubble_ratio(self) -> float:
        """The idle share of all ranks' time until the end of the last backward."""
        return 1.0 - sum(self.busy) / (self.makespan * self.plan.world_size)

    def per_rank(self, values: Sequence[T]) -> list[T]:
        """The values of each rank: every member of a team has its worker's value."""
        return [value for value in values for _ in range(self.plan.tensor)]


def simulate(
    plan: Plan,
    workload: Workload,
    machine: Machine | None = None,
    *,
    sums_start: str = "gap",
    recompute: bool = False,
    all_reduce: str = "rabenseifner",
) -> Simulated:
    """Run one step on the virtual clock. Where a loop is running, call this through `asyncio.to_thread`.

    Args:
        plan: the arrangement; its ranks fill the nodes of the machine in order.
        workload: costs and parameters of `plan.depth` stages; where a worker is a team, they are for one member,
            and its seconds include the moves within the team.
        machine: the machine; None: free messages and a core per rank.
        sums_start: when a stage's gradient sum starts: after its last backward ("eager"), there only if an idle gap
            follows at the plan's own costs ("gap"; `job.with_costs` sets them), or after the flush ("after").
        recompute: keep only the input and output of a stage, and run its forward again before its backward.
        all_reduce: the algorithm of gradient sums, or several by size; each must have a closed form.
    Raises:
        ScheduleError: the schedule refuses the shape, deadlocks, or forgets or repeats an instruction.
        UsageError: an unknown name, or costs for another number of stages.
    Cost: about 40 µs per instruction of every worker; without a flush of several steps, as `steady`.
    """
    job = SimulatedJob(plan, workload, machine or Machine(), sums_start, recompute, all_reduce=all_reduce)
    prepared = prepare_group(plan, sums_start)
    if plan.flushes:
        segment = run_virtual(_run(job, prepared, 1))
        seconds = segment.seconds
    else:
        seconds, segment = steady_step(lambda steps: run_virtual(_run(job, prepared, steps)), plan.shape)
    memory = [rank_bytes for rank_bytes in _memory(job, segment.groups[0]) for _ in range(plan.tensor)]
    traffic = link_bytes(plan, workload, all_reduce)
    return Simulated(
        plan=plan,
        groups=segment.groups,
        sums=segment.sums if plan.flushes else (),
        step_s=seconds,
        memory=tuple(memory * plan.width),
        traffic=traffic,
        steps=segment.steps,
    )


@dataclass(frozen=True)
class _SimulatedSegment:
    """A simulated segment: its steps, the timeline of each group, the gradient sums, the end of the last update."""

    steps: int
    groups: tuple[Timeline, ...]
    sums: tuple[Sum, ...]
    seconds: float

    @property
    def workers(self) -> list[tuple[Timed, ...]]:
        return [worker for group in self.groups for worker in group.workers]


async def _run(job: SimulatedJob, prepared: Sequence[Prepared], steps: int) -> _SimulatedSegment:
    """Run some steps, from one drain to the next."""
    hardware = _hardware(job, steps)
    groups: list[list[Rank]] = []
    async with Nursery() as tasks:
        for group in range(job.plan.width):
            groups.append(_ranks(job, hardware, group, prepared, tasks))
            for rank in groups[-1]:
                tasks.create_task(rank.run(), name=f"rank {rank.rank}")
    rows = ([tuple(rank.worker.timed_instructions) for rank in group] for group in groups)
    timelines = tuple(Timeline(hardware.stage_map, tuple(workers)) for workers in rows)
    return _SimulatedSegment(steps, timelines, tuple(_gradient_sums(job, hardware)), VirtualClock().now())


def _hardware(job: SimulatedJob, steps: int) -> Hardware:
    plan = job.plan
    machine = job.machine
    stage_map = find(plan.schedule).stage_map(replace(plan.shape, steps=steps))
    computing_ranks = plan.world_size * (2 if any(stage.delayed_update for stage in job.workload.stages) else 1)
    cores = VirtualCores(machine.cores / plan.tensor if machine.shares_cores(computing_ranks) else 0)
    costs = CostCache(stage_map, job.seconds)
    return Hardware(stage_map, costs, VirtualLinks(machine, job.members), cores, VirtualSums(job.sums(steps)))


def _ranks(
    job: SimulatedJob, hardware: Hardware, group: int, prepared: Sequence[Prepared], tasks: Nursery
) -> list[Rank]:
    """The ranks of one pipeline group; the first member stands for its team."""
    rank_class: Callable[..., Rank] = FlushedRank if job.plan.flushes else OverlappingRank
    messages = GroupMessages()
    platform = GroupPlatform(job, hardware, group)
    ranks = [job.plan.rank(group, worker) for worker in range(hardware.stage_map.workers)]
    return [rank_class(platform, rank, messages, worker, tasks) for rank, worker in zip(ranks, prepared, strict=True)]


def _gradient_sums(job: SimulatedJob, hardware: Hardware) -> Iterator[Sum]:
    """The gradient sums of all members of teams, from the simulated sums of the first members."""
    for sum_ in hardware.sums.completed_sums:
        if sum_.key != STEP_TOTALS:
            for member in range(job.plan.tensor):
                yield replace(sum_, ranks=tuple(rank + member for rank in sum_.ranks))


def _memory(job: SimulatedJob, group: Timeline) -> list[RankMemory]:
    """The memory of each worker of a group; for a dynamic schedule with a flush, the peak over all timings."""
    plan = job.plan
    program = record_in_time(find(plan.schedule), plan.stage_map) if plan.flushes else group.program
    return program_memory(job.workload, program, job.recompute)
