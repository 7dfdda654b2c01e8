"""A schedule without a flush on a described machine: segments of steps, and the time that one more step adds.

Weights are updated when training updates them: both follow `pipelined.programs.update_rule`. The step totals are
exchanged several steps later, so no rank waits for them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass, replace

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.aio.nursery import Nursery
from pipelined.programs.staleness import steps_to_fill
from pipelined.programs.steady import FURTHER
from pipelined.programs.timeline import Timeline
from pipelined.programs.update_rule import Apply, Collect, UpdateRule
from pipelined.programs.virtual_worker import Demands, Post, VirtualWorker
from pipelined.schedules import StageMap, find
from pipelined.simulation.cores import VirtualCores
from pipelined.simulation.job import Job
from pipelined.simulation.links import VirtualLinks
from pipelined.simulation.rank import GroupBench, Hardware
from pipelined.simulation.sums import VirtualSums


@dataclass(frozen=True)
class Segment:
    """The steps from one drain to the next.

    Args:
        groups: the timeline of each pipeline group.
        seconds: the time of the last update, from the start.
        steps: the number of steps.
    """

    groups: tuple[Timeline, ...]
    seconds: float
    steps: int


def simulate_segments(job: Job) -> tuple[Segment, float]:
    """Run a short and a longer segment on the virtual clock.

    Returns: the longer one, and the seconds of a step: the difference in time over the difference in steps.
    """
    full = steps_to_fill(job.plan.shape)
    short, long = (run_virtual(_segment(job, steps)) for steps in (full, full + FURTHER))
    return long, (long.seconds - short.seconds) / FURTHER


async def _segment(job: Job, steps: int) -> Segment:
    plan, machine, schedule = job.plan, job.machine, find(job.plan.schedule)
    layout = schedule.layout(replace(plan.shape, steps=steps))
    cores = VirtualCores(machine.cores if machine.shares(plan.world_size) else 0)
    sums = VirtualSums(_sums(job, steps * job.plan.updates_a_step))
    hardware = Hardware(Demands(layout, job.seconds), VirtualLinks(machine), cores, sums)
    groups: list[list[_Worker]] = []
    async with Nursery() as tasks:
        for group in range(plan.width):
            post, bench = Post(), GroupBench(job, hardware, group)
            groups.append([])
            for index in range(layout.workers):
                updates = _Updates(job, hardware, layout, index, tasks)
                groups[-1].append(_Worker(index, layout, post, bench, updates))
            for worker in groups[-1]:
                tasks.create_task(worker.run(schedule.schedule), name=f"group {group}, worker {worker.index}")
    timelines = tuple(Timeline(layout, tuple(tuple(worker.done) for worker in group)) for group in groups)
    return Segment(timelines, VirtualClock().now(), steps)


def _sums(job: Job, updates: int) -> dict[Hashable, tuple[tuple[int, ...], float]]:
    """The gradient sum of each update, by (the stages of the parameters, the update)."""
    priced = job.sums()
    return {(group.stages, n): priced[group.stages] for group in job.workload.parameters for n in range(updates)}


class _Updates:
    """Carries out the decisions of a worker's update rule, each in the seconds that it costs."""

    def __init__(self, job: Job, hardware: Hardware, layout: StageMap, index: int, tasks: Nursery):
        (stage,) = layout.stages_of(index)
        mine = [group for group in job.workload.parameters if stage in group.stages]
        each = job.workload.stages[stage].update / max(1, sum(group.elements for group in mine))
        self._seconds = {group.stages: each * group.elements for group in mine}
        self._hardware, self._tasks = hardware, tasks
        self._sums: dict[Hashable, asyncio.Task[None]] = {}
        self.rule = UpdateRule(layout, self._seconds)

    async def carry_out(self, decisions: Iterable[Collect | Apply]) -> None:
        for decision in decisions:
            what = decision.bucket, decision.update
            if isinstance(decision, Collect):
                self._sums[what] = self._tasks.create_task(self._sum(what))
            else:
                await self._sums.pop(what)
                await self._hardware.cores.run(self._seconds[decision.bucket])

    async def _sum(self, what: Hashable) -> None:
        if len(self._hardware.sums.ranks(what)) > 1:
            await self._hardware.sums.join(what)


class _Worker(VirtualWorker):
    """A worker that updates its stage during a segment."""

    def __init__(self, index: int, layout: StageMap, post: Post, bench: GroupBench, updates: _Updates):
        super().__init__(index, layout, bench.hardware.demands, post, bench)
        self._updates = updates

    async def run(self, schedule: Callable[[VirtualWorker], Awaitable[None]]) -> None:
        """Run the whole segment, the last updates included."""
        await schedule(self)
        await self._updates.carry_out(self._updates.rule.drain())

    async def execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        if op == "F":
            await self._updates.carry_out(self._updates.rule.before_forward(microbatch).applies)
        await super().execute(op, pipe, stage, microbatch)
        if op in "BW":
            await self._updates.carry_out(self._updates.rule.after_backward())
