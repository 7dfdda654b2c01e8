"""Messages through a codec: how much of them travels, how long they spend in it, and what that does to a step."""

import asyncio
from dataclasses import replace

import pytest

from collectives import Links
from pipelined.actors.actor import Actor
from pipelined.aio.clock import RealClock
from pipelined.measurement.effort import BRIEF
from pipelined.measurement.timed.codec import CodecCosts, measure_coding, ratio_of
from pipelined.planner.model_costs import StatedCosts, priced
from pipelined.programs.plan import Plan
from pipelined.simulation import Machine, simulate
from tests.unit.pipelined.planner.toys import SENT, Toy
from transports.local import world

LINKS = Links(0.5, 0.25, 0.0)
"""Half a second a message and a quarter a byte."""


@pytest.mark.parametrize(("codec", "ratio"), [("none", 1.0), ("fp16", 0.5), ("blockwise8", 0.25)])
def test_the_share_that_travels_is_the_codecs(codec, ratio):
    assert ratio_of(codec) == pytest.approx(ratio, rel=0.01)


def workload(plan, coding):
    toy = Toy(layers=plan.depth)
    return priced(toy, plan, replace(StatedCosts(toy.layer_costs, toy.sequence, 10.0), coding=coding))


def seconds(plan, coding):
    """Until the last backward; a forward of a stage takes 1 and a backward 2."""
    return simulate(plan, workload(plan, coding), Machine(LINKS)).makespan


def test_a_message_spends_its_coding_and_then_what_is_left_of_it_holds_the_link():
    plan = Plan("gpipe", 2, 1, 1, 1)
    assert seconds(plan, CodecCosts()) == 6 + 2 * (0.5 + SENT / 4)
    assert seconds(plan, CodecCosts(0.5, fixed=3.0, per_byte=1.0)) == 6 + 2 * (3.0 + SENT + 0.5 + SENT / 8)


def test_what_a_rank_reports_itself_goes_through_the_codec_too():
    plan = Plan("interleaved", 2, 1, 1, 1, {"chunks": 2})
    assert plan.world_size == 1
    assert seconds(plan, CodecCosts(0.5, fixed=3.0)) == seconds(plan, CodecCosts()) + 2 * 3.0


def test_halved_microbatches_are_coded_one_by_one():
    plan = Plan("chimera", 2, 1, 2, 2, {"scale": "backward-halving"})
    (stage, _), parts = workload(plan, CodecCosts(0.5, fixed=3.0, per_byte=1.0)).stages, plan.stage_map.pieces
    assert stage.coding / parts == 3.0 + 2 * SENT / parts
    assert stage.message_bytes == SENT


def test_a_codec_is_timed_on_all_ranks_and_the_first_knows():
    async def rank(transport, codec):
        async with Actor(transport) as actor:
            return await measure_coding(actor, RealClock(), codec, lambda line: None, BRIEF)

    async def on_both_ranks(codec):
        return await asyncio.gather(*(rank(transport, codec) for transport in world(2)))

    first, second = asyncio.run(on_both_ranks("fp16"))
    assert second is None and first.ratio == 0.5 and first.seconds(1 << 20) > 0.0
    assert asyncio.run(on_both_ranks("none")) == [CodecCosts(), None]
