"""One rank of a simulated job: its share of the hardware, and the order of its steps with a flush or without one.

A rank in training has the same order, and both follow `pipelined.programs.updates.update_rule`; each part takes the
seconds that it costs on the machine.
"""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from pipelined.aio.clock import VirtualClock
from pipelined.programs.addresses import ACTIVATION, MESSAGE_KINDS
from pipelined.programs.due_messages import DueMessages
from pipelined.programs.instructions import Token
from pipelined.programs.prepare import Prepared
from pipelined.programs.pricing.virtual_worker import CostCache, GroupMessages, Platform, VirtualWorker
from pipelined.programs.updates.bucket_names import Stages
from pipelined.programs.updates.step_totals import STEP_TOTALS
from pipelined.programs.updates.sum_starts import SumStarts
from pipelined.programs.updates.update_rule import Apply, Collect, UpdateRule
from pipelined.schedules import StageMap
from pipelined.simulation.cores import VirtualCores
from pipelined.simulation.job import SimulatedJob
from pipelined.simulation.virtual_links import VirtualLinks
from pipelined.simulation.virtual_sums import VirtualSums
from pipelined.simulation.workload import Parameters
from transports import Nursery


@dataclass(frozen=True)
class Hardware:
    """The stage map and the state of one simulated segment, which all ranks share."""

    stage_map: StageMap
    costs: CostCache
    links: VirtualLinks
    cores: VirtualCores
    sums: VirtualSums


class GroupPlatform(Platform):
    """The cores and links of the workers of one pipeline group.

    Args:
        group: the number of the group; it gives the ranks of the workers.
    """

    def __init__(self, job: SimulatedJob, hardware: Hardware, group: int):
        self.job, self.hardware, self._group = job, hardware, group
        self._clock = VirtualClock()
        machine = job.machine
        self._knows_travel = not machine.interference and not machine.shares_cores(job.plan.world_size)

    async def compute(self, worker: int, seconds: float) -> None:
        """Compute, then compute the share that gradient sums took in the meantime, until no time is lost any more."""
        while seconds > 0:
            start = self._clock.now()
            await self.hardware.cores.run(seconds)
            seconds = self._seconds_lost(worker, start)

    def travel(self, token: Token, source: int, target: int) -> float:
        if not self._knows_travel:
            return math.inf
        nbytes, coding = self._size_of_message(token)
        return coding + self.hardware.links.travel(self._rank(source), self._rank(target), nbytes)

    def send(self, token: Token, source: int, target: int) -> float:
        nbytes, coding = self._size_of_message(token)
        end_ranks = self._rank(source), self._rank(target)
        return self.hardware.links.send(*end_ranks, nbytes, self._clock.now() + coding)

    def _seconds_lost(self, worker: int, start: float) -> float:
        share = self.job.machine.interference
        return share and share * self.hardware.sums.overlap(self._rank(worker), start, self._clock.now())

    def _rank(self, worker: int) -> int:
        return self.job.plan.rank(self._group, worker)

    def _size_of_message(self, token: Token) -> tuple[float, float]:
        """(bytes, seconds of coding) of a message: the same for the activation and the gradient over a boundary."""
        kind, _, stage, _ = token
        if kind not in MESSAGE_KINDS:
            return 0.0, 0.0
        boundary = stage - 1 if kind == ACTIVATION else stage
        return self.job.message_bytes(boundary), self.job.coding_seconds(boundary)


class Rank(ABC):
    """One rank in one segment, which stands for all members of its team.

    Args:
        platform: the cores and links of its group.
        tasks: the parent of the tasks of its sums.

    Attributes:
        worker: the worker that its schedule commands.
        stages: the stages that it holds.
        parameters: the parameters that it holds.
    """

    worker: VirtualWorker

    def __init__(self, platform: GroupPlatform, rank: int, tasks: Nursery):
        self.job = platform.job
        self.hardware = platform.hardware
        self.rank = rank
        self._tasks = tasks
        self.index = platform.job.plan.group_and_worker(rank)[1]
        self.stages = self.hardware.stage_map.stages_of(self.index)
        stages = set(self.stages)
        self.parameters = [bucket for bucket in self.job.workload.parameters if stages.intersection(bucket.stages)]

    @abstractmethod
    async def run(self) -> None:
        """Run the schedule, and finish the gradient sums and the updates."""

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Start a gradient sum as a task."""
        return self._tasks.create_task(work, name=f"a sum of rank {self.rank}")

    async def sum(self, name: Hashable) -> None:
        """Take part in a gradient sum, by its name in `SimulatedJob.sums`, if it has other ranks."""
        if len(self.hardware.sums.ranks(name)) > 1:
            await self.hardware.sums.join(name)


class FlushedRank(Rank):
    """One rank in one step with a flush.

    Args:
        messages: the messages of its group.
        prepared: its instructions and gradient sums of a step.
    """

    def __init__(self, platform: GroupPlatform, rank: int, messages: GroupMessages, prepared: Prepared, tasks: Nursery):
        super().__init__(platform, rank, tasks)
        stage_map, costs = self.hardware.stage_map, self.hardware.costs
        self._schedule = prepared.schedule
        due_messages = DueMessages(prepared.instructions)
        self._rule = UpdateRule(stage_map, [(stage,) for stage in self.stages])  # an update has its price by stage
        self._sum_starts = SumStarts(self, self.parameters, self._sum, prepared.instructions)
        record_end = self._sum_starts.record_end
        self.worker = VirtualWorker(
            self.index, stage_map, costs, messages, platform, on_done=record_end, due_messages=due_messages
        )

    async def run(self) -> None:
        """Run the schedule, finish the gradient sums, sum the step totals over all ranks, make the rule's updates.

        A delayed update of the step before runs beside that, and has ended before the next one begins.
        """
        stages = self.job.workload.stages
        delayed_seconds = sum(stages[stage].delayed_update for stage in self.stages)
        delayed_update = self.start(self.hardware.cores.run(delayed_seconds)) if delayed_seconds else None
        await self._schedule.schedule(self.worker)
        await self._sum_starts.finish()
        await self.hardware.sums.join(STEP_TOTALS)
        if delayed_update is not None:
            await delayed_update
        await self.hardware.cores.run(sum(stages[apply.bucket[0]].update for apply in self._rule.drain()))

    async def _sum(self, parameters: Parameters) -> None:
        await self.sum(parameters.stages)


class OverlappingRank(Rank):
    """One rank in a segment of steps that overlap: its stage is updated while the schedule runs, as in training.

    The step totals are exchanged several steps later, so no rank waits for them.

    Args:
        messages: the messages of its group.
        prepared: its schedule.
    """

    def __init__(self, platform: GroupPlatform, rank: int, messages: GroupMessages, prepared: Prepared, tasks: Nursery):
        super().__init__(platform, rank, tasks)
        (stage,) = self.stages
        element_s = self.job.workload.stages[stage].update / max(1, sum(bucket.elements for bucket in self.parameters))
        self._seconds = {bucket.stages: element_s * bucket.elements for bucket in self.parameters}
        self._sums: dict[tuple[Stages, int], asyncio.Task[None]] = {}
        self._schedule = prepared.schedule
        self.rule = UpdateRule(self.hardware.stage_map, self._seconds)
        self.worker = _OverlappingWorker(self, platform, messages)

    async def run(self) -> None:
        await self._schedule.schedule(self.worker)
        await self.carry_out(self.rule.drain())

    async def carry_out(self, decisions: Iterable[Collect | Apply]) -> None:
        """Carry out decisions of the rule, each in the seconds that it costs."""
        for decision in decisions:
            update = decision.bucket, decision.update
            if isinstance(decision, Collect):
                self._sums[update] = self.start(self.sum(update))
            else:
                await self._sums.pop(update)
                await self.hardware.cores.run(self._seconds[decision.bucket])


class _OverlappingWorker(VirtualWorker):
    """A worker that reports to the update rule of its rank."""

    def __init__(self, rank: OverlappingRank, platform: GroupPlatform, messages: GroupMessages):
        super().__init__(rank.index, rank.hardware.stage_map, rank.hardware.costs, messages, platform)
        self._rank = rank

    async def _execute(self, op: str, pipe: int, stage: int, microbatch: int) -> None:
        if op == "F":
            await self._rank.carry_out(self._rank.rule.before_forward(microbatch).applies)
        await super()._execute(op, pipe, stage, microbatch)
        if op in "BW":
            await self._rank.carry_out(self._rank.rule.after_backward())
