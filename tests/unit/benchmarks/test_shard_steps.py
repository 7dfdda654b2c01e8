"""The benchmark of teams' steps: an emulated team takes what the planner predicts, and data parallelism takes part."""

import asyncio
import math

import pytest

from benchmarks.pipelines.team_replay import Member
from benchmarks.shard_steps import Options, counted, pick
from collectives import Links
from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.planner import SearchRequest, StatedCosts
from pipelined.sharding import MeshGroups
from pipelined.simulation import Machine
from transports import open_local

LINKS = Links(1e-3, 8 / 1e9, 0.0)
OPTIONS = Options(layouts=3, layers=1, d_model=32, seq=8, batch=4)


@pytest.fixture(scope="module")
def request_():
    planned = OPTIONS.planned(4)
    costs = StatedCosts(planned.layer_costs, planned.sequence, OPTIONS.speed)
    return SearchRequest(planned, costs, Machine(LINKS), 4)


def test_the_best_predicted_are_run_and_data_parallelism_with_them(request_):
    picked = pick(request_, OPTIONS)
    *others, data = [one.candidate.plan for one in picked]
    assert len(picked) == len({plan.layout + str(plan.rows) for plan in (*others, data)}) == 3
    assert {factors.split("=")[1] for factors in data.layout.split(",")} == {"4.1.1"}
    steps = [one.step_s for one in picked[:-1]]
    assert steps == sorted(steps)


def test_an_emulated_team_takes_no_longer_than_the_planner_predicts_and_little_less(request_):
    for outcome in pick(request_, OPTIONS):
        plan, clock = outcome.candidate.plan, VirtualClock()

        async def step(plan=plan, clock=clock):
            ends = open_local("local://?delay=1ms&rate=1gbit", 4)
            model = request_.model.build_split(plan)
            members = [Member(MeshGroups(end, 1), model, plan, 8, speed=OPTIONS.speed, clock=clock) for end in ends]
            return max(await asyncio.gather(*(member.step() for member in members)))

        assert 0.9 * outcome.step_s <= run_virtual(step()) <= 1.005 * outcome.step_s, plan.layout


def test_the_memory_of_every_rank_is_counted_as_it_trains_and_near_what_is_planned(request_):
    """By data parallelism a rank has weights, gradients and two moments of AdamW whole, 4 bytes each."""
    picked = pick(request_, OPTIONS)

    async def ranks():
        ends = open_local("local://", 4)
        chosen = [outcome.candidate for outcome in picked]
        found, *_ = await asyncio.gather(*(counted(end, request_.model, chosen) for end in ends))
        await asyncio.gather(*(end.close() for end in ends))
        return found

    found = asyncio.run(ranks())
    for outcome, row in zip(picked, found, strict=True):
        planned = [rank.total for rank in outcome.simulated.memory]
        assert len(row) == len(planned) == 4
        assert all(0.98 * bytes_ <= plan <= 1.15 * bytes_ for plan, bytes_ in zip(planned, row, strict=True)), outcome
    model = request_.model.build_split(picked[-1].candidate.plan)
    assert min(found[-1]) > 16 * sum(math.prod(each.lengths) for each in model.parameters().values())
