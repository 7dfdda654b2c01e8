"""Teams of ranks: the simulator folds the members of a worker into one; here each rank is simulated by itself."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Links
from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.programs.plan import Plan
from pipelined.programs.prepare import prepare_group
from pipelined.programs.pricing.virtual_worker import CostCache, GroupMessages
from pipelined.programs.updates.step_totals import STEP_TOTALS
from pipelined.simulation import Machine, Parameters, StageCosts, Workload, simulate
from pipelined.simulation.cores import VirtualCores
from pipelined.simulation.job import SimulatedJob
from pipelined.simulation.rank import FlushedRank, GroupPlatform, Hardware
from pipelined.simulation.traffic import message_bytes, totals_bytes
from pipelined.simulation.virtual_links import VirtualLinks
from pipelined.simulation.virtual_sums import VirtualSums
from transports import Nursery

NEAR, FAR = Links(0.01, 1e-4, 1e-5), Links(0.05, 3e-4, 1e-5)


class MemberPlatform(GroupPlatform):
    """The cores and links of one member of every team of a group."""

    def __init__(self, job, hardware, group, member):
        super().__init__(job, hardware, group)
        self._member = member

    def _rank(self, worker):
        return self.job.plan.rank(self._group, worker, self._member)


class MemberRank(FlushedRank):
    """A rank that sums with the ranks of its own member."""

    async def _sum(self, parameters):
        await self.sum((parameters.stages, self.job.plan.member(self.rank)))


@dataclass(frozen=True)
class EveryRank(SimulatedJob):
    """The job with the sums of all members."""

    def sums(self, steps=1):
        plan, everyone = self.plan, tuple(range(self.plan.world_size))
        found = {STEP_TOTALS: (everyone, self.machine.sum_seconds("auto", everyone, totals_bytes(plan, self.workload)))}
        for group in self.workload.parameters:
            for member in range(plan.tensor):
                holders = plan.holders(*group.stages, member=member)
                seconds = self.machine.sum_seconds(self.all_reduce, holders, group.sum_bytes)
                found[group.stages, member] = holders, seconds
        return found


async def of_every_rank(job, prepared):
    """(seconds of the step, instructions with their times of each rank), with a coroutine for each rank."""
    plan, machine, stage_map = job.plan, job.machine, job.plan.stage_map
    cores = VirtualCores(machine.cores if machine.shares_cores(plan.world_size) else 0)
    hardware = Hardware(
        stage_map, CostCache(stage_map, job.seconds), VirtualLinks(machine), cores, VirtualSums(job.sums())
    )
    ranks = {}
    async with Nursery() as tasks:
        for group in range(plan.width):
            for member in range(plan.tensor):
                messages, platform = GroupMessages(), MemberPlatform(job, hardware, group, member)
                for worker, each in enumerate(prepared):
                    rank = plan.rank(group, worker, member)
                    ranks[rank] = MemberRank(platform, rank, messages, each, tasks)
                    tasks.create_task(ranks[rank].run())
    return VirtualClock().now(), [ranks[rank].worker.timed_instructions for rank in range(plan.world_size)]


def workload(depth):
    stages = [
        StageCosts(forward=1 + 0.25 * s, backward=2 + 0.5 * s, update=0.5, message_bytes=400) for s in range(depth)
    ]
    return Workload(stages, [Parameters((stage,), 500 * (stage + 1), tensors=3) for stage in range(depth)])


def both(plan, machine):
    """The step folded, and (seconds, instructions) of every rank."""
    asked = plan, workload(plan.depth), machine, "gap", False, "ring"
    return (
        simulate(*asked[:3], all_reduce="ring"),
        run_virtual(of_every_rank(EveryRank(*asked), prepare_group(plan, "gap"))),
    )


@settings(max_examples=6)
@given(
    st.sampled_from(["one_f_one_b", "chimera", "zb_h1", "chimera_w", "interleaved"]),
    st.sampled_from([(2, 1, 2), (2, 2, 4), (4, 1, 4), (4, 2, 2), (4, 2, 8), (2, 3, 3), (4, 4, 4)]),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([0, 0, 3]),
    st.sampled_from([0.0, 0.25]),
)
def test_folded_members_take_as_long_as_every_rank_simulated(schedule, shape, teams, cores, interference):
    """Up to 64 ranks; a node has some whole teams, or a team some whole nodes."""
    depth, width, tensor = shape
    knobs = {"chunks": 2} if schedule == "interleaved" else {}
    plan = Plan(schedule, depth * 2 if knobs else depth, width, 2, 2 * depth, knobs, tensor=tensor)
    node = tensor * teams if teams < 4 else max(1, tensor // 2)
    machine = Machine(NEAR, FAR, node if tensor % node == 0 or node % tensor == 0 else tensor, cores, interference)
    folded, (seconds, done) = both(plan, machine)
    assert folded.step_s == pytest.approx(seconds, rel=1e-12)
    assert len(folded.busy) == plan.world_size <= 64
    assert folded.busy == pytest.approx([sum(each.end - each.start for each in rank) for rank in done], rel=1e-9)


def test_a_node_that_ends_inside_a_team_makes_no_step_shorter():
    plan = Plan("one_f_one_b", 2, 2, 2, 4, tensor=3)
    folded, (seconds, _) = both(plan, Machine(NEAR, FAR, node=4))
    assert seconds <= folded.step_s <= simulate(plan, workload(2), Machine(FAR), all_reduce="ring").step_s


def test_each_member_sends_to_its_like_and_holds_as_much():
    plan = Plan("gpipe", 2, 1, 1, 4, tensor=3)
    assert message_bytes(plan, workload(2)) == {
        (0, 3): 1600, (3, 0): 1600, (1, 4): 1600, (4, 1): 1600, (2, 5): 1600, (5, 2): 1600,
    }  # fmt: skip
    folded = simulate(plan, workload(2), Machine(NEAR))
    alone = simulate(replace(plan, tensor=1), workload(2), Machine(NEAR))
    assert folded.memory == tuple(memory for memory in alone.memory for _ in range(3))
