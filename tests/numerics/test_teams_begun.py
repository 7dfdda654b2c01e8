"""Teams begin from another model's weights, send through codecs, and follow an order that was recorded."""

import asyncio
import time
import weakref
from dataclasses import replace

import pytest
import torch

from apps.common.lm.huggingface.initial import load_initial
from pipelined.state.checkpoints.whole_state import gather_state
from pipelined.traces.file import write
from pipelined.traces.tracer import Tracer
from pipelined.training.segments.replay import of_rank, packed, read_orders
from tests.numerics.plain import pipelined
from tests.numerics.teams import TeamCase
from tests.numerics.trained import on_ranks
from transports import new_event_loop
from transports.local import world

CASE = TeamCase("zb_h1", 2, 1, 2, layers=1, dropout=0.2)


@pytest.mark.parametrize("layout", ["mixed", "data+zero3"])
def test_teams_begin_with_the_weights_of_another_run(layout):
    case = replace(CASE, layout=layout)
    module = case.model.build(range(case.model.layers), torch.float64, "cpu", seed=8)
    wanted = {name: parameter.detach() for name, parameter in module.named_parameters()}

    async def begun(trainer):
        await load_initial(trainer, lambda names: ((name, wanted[name]) for name in names))
        state = await gather_state(trainer)
        return state, (await trainer.step(0)).loss

    for numerics in ({}, {"shard_optimizer": True}):
        (state, loss), *others = on_ranks(case.job(**numerics), begun)
        assert all(torch.equal(state[name], value) for name, value in wanted.items())
        alone = replace(case.job(), plan=replace(case.plan, tensor=1, depth=1))
        assert loss == pytest.approx(on_ranks(alone, begun)[0][1], rel=1e-12)
        assert {each for _, each in others} == {loss}


def test_a_member_reads_one_whole_parameter_at_a_time():
    module = CASE.model.build(range(CASE.model.layers), torch.float64, "cpu", seed=8)
    wanted = {name: parameter.detach() for name, parameter in module.named_parameters()}

    def one_by_one(names):
        before = []
        for name in names:
            assert all(each() is None for each in before), f"a whole parameter before {name} is still held"
            whole = wanted[name].clone()
            before.append(weakref.ref(whole))
            yield name, whole
            del whole

    async def begun(trainer):
        await load_initial(trainer, one_by_one)

    on_ranks(CASE.job(), begun)


def test_a_codec_without_loss_changes_no_bit_and_one_that_rounds_does():
    async def losses(trainer):
        return [(await trainer.step(step)).loss for step in range(2)]

    plain, packed, rounded = (
        on_ranks(CASE.job(torch.float32, compress=codec), losses)[0] for codec in ("none", "zstd:1", "bf16")
    )
    assert packed == plain != rounded
    assert rounded == pytest.approx(plain, rel=1e-2)


def test_the_members_of_a_team_follow_an_order_that_was_recorded(tmp_path):
    def train(path, orders=None):
        tracers = [Tracer(time.perf_counter) for _ in range(CASE.plan.world_size)]

        async def one(end):
            mine = of_rank(packed(orders), end.rank) if orders else None
            return await pipelined(CASE, end, 2, tracers[end.rank], mine)

        async def everyone():
            return await asyncio.gather(*map(one, world(CASE.plan.world_size)))

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            outcomes = runner.run(everyone())
        write(path, [tracer.events() for tracer in tracers])
        return [outcome.losses for outcome in outcomes], read_orders(path, CASE.plan)

    losses, orders = train(tmp_path / "trace.json")
    assert train(tmp_path / "replayed.json", orders) == (losses, orders)
