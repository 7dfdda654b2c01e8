"""A schedule without a flush on a described machine: segments of steps, and the time that one more step adds.

Weights are updated at the same points as in training (`pipelined.training.without_flush.stage_updates`). A parameter
that only this stage holds is updated right after the sum of its gradient, before the next instruction. Another one is
updated when a forward needs it. The step totals are exchanged several steps later, so no rank waits for them.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field, replace

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.aio.nursery import Nursery
from pipelined.programs.staleness import shared_version, steps_to_fill
from pipelined.programs.steady import FURTHER
from pipelined.programs.timeline import Timeline
from pipelined.programs.virtual_worker import Demands, Post, VirtualWorker
from pipelined.schedules import StageMap, find
from pipelined.simulation.cores import VirtualCores
from pipelined.simulation.job import Job
from pipelined.simulation.links import VirtualLinks
from pipelined.simulation.rank import GroupBench, Hardware
from pipelined.simulation.sums import VirtualSums
from pipelined.simulation.workload import Parameters


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


@dataclass
class _Bucket:
    """Parameters that the same stages hold.

    Args:
        seconds: of one update of these parameters.
        follows_order: True if a forward uses the newest version; False if the number of its microbatch determines the
            version.
    """

    parameters: Parameters
    seconds: float
    follows_order: bool
    newest: int = 0
    waiting: deque["asyncio.Task[None]"] = field(default_factory=deque)


class _Updates:
    """The updates of a worker's stage; it has only one."""

    def __init__(self, job: Job, hardware: Hardware, layout: StageMap, index: int, tasks: Nursery):
        (stage,) = layout.stages_of(index)
        self._rule = layout.updates
        self._hardware, self._tasks, self._depth, self._backwards = hardware, tasks, layout.depth, 0
        mine = [group for group in job.workload.parameters if stage in group.stages]
        each = job.workload.stages[stage].update / max(1, sum(group.elements for group in mine))
        self._buckets = [
            _Bucket(group, each * group.elements, self._rule.delay is None and len(group.stages) == 1) for group in mine
        ]

    async def before_forward(self, microbatch: int) -> None:
        for bucket in self._buckets:
            if not bucket.follows_order:
                behind = self._depth - 1 - bucket.parameters.stages[0]
                await self._advance(bucket, shared_version(self._rule, microbatch, behind))

    async def after_backward(self) -> None:
        self._backwards += 1
        number, rest = divmod(self._backwards, self._rule.every)
        if rest:
            return
        for bucket in self._buckets:
            bucket.waiting.append(self._tasks.create_task(self._sum(bucket, number - 1)))
            if bucket.follows_order:
                await self._advance(bucket, number)

    async def drain(self) -> None:
        for bucket in self._buckets:
            await self._advance(bucket, bucket.newest + len(bucket.waiting))

    async def _advance(self, bucket: _Bucket, newest: int) -> None:
        while bucket.newest < newest:
            await bucket.waiting.popleft()
            await self._hardware.cores.run(bucket.seconds)
            bucket.newest += 1

    async def _sum(self, bucket: _Bucket, number: int) -> None:
        what = bucket.parameters.stages, number
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
        await self._updates.drain()

    async def execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        if op == "F":
            await self._updates.before_forward(microbatch)
        await super().execute(op, pipe, stage, microbatch)
        if op in "BW":
            await self._updates.after_backward()
