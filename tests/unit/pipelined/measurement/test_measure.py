"""Measuring on ranks of this process: what comes out is of the right shape, and every kind of stage is priced."""

import asyncio

import torch

from apps.gpt2.config import GPT2Flags
from apps.gpt2.planned_model import planned_model_of
from pipelined.actors.actor import Actor
from pipelined.actors.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.measurement.costs import kinds_of
from pipelined.measurement.effort import BRIEF, THOROUGH
from pipelined.measurement.links import measure_hops, measure_sums
from pipelined.measurement.measure import measure
from pipelined.measurement.probes import probes
from pipelined.planner import SearchRequest, search
from pipelined.process.launch import ALONE
from pipelined.simulation.machine import Machine
from transports.local import world


def alike(layers):
    return kinds_of([1.0] * layers)


def test_stages_are_timed_alone_with_a_neighbour_in_several_lengths_and_whole():
    assert probes(alike(6), THOROUGH) == [
        *(range(*ends) for ends in [(0, 1), (5, 6), (0, 2), (4, 6), (1, 2), (1, 3), (1, 5), (0, 6)])
    ]
    assert probes(alike(3), THOROUGH) == [range(0, 1), range(2, 3), range(0, 2), range(1, 3), range(1, 2), range(0, 3)]
    assert range(0, 66) not in probes(alike(66), THOROUGH)


def test_little_effort_still_reports_first_inner_and_last_layers_and_an_instruction_apart():
    assert probes(alike(6), BRIEF) == [range(0, 1), range(5, 6), range(1, 2), range(1, 3)]


def test_of_every_kind_of_layer_one_is_timed():
    kinds = kinds_of([1.0, 2.0, 3.0, 2.0, 5.0, 3.0, 5.0, 7.0, 8.0, 1.0])
    assert probes(kinds, BRIEF) == [
        range(0, 1),
        range(9, 10),
        range(1, 2),
        range(1, 3),
        range(4, 5),
        range(7, 8),
        range(8, 9),
    ]


async def test_messages_and_sums_are_timed_between_ranks():
    async def rank(transport):
        async with Actor(transport) as actor:
            hops = await measure_hops(actor, RealClock(), [(0, 1)], asyncio.sleep, progress=lambda line: None)
            return hops, await measure_sums(actor, RealClock(), (0, 1), "ring", progress=lambda line: None)

    (hops, sums), others = await asyncio.gather(*map(rank, world(2)))
    assert others == (None, None)
    assert hops.links.alpha > 0 and sums.links.gamma > 0
    assert min(hops.links.alpha, hops.links.beta, sums.links.alpha, sums.links.beta) >= 0


def test_what_is_measured_alone_prices_every_plan(monkeypatch):
    model = planned_model_of(GPT2Flags(layers=2, d_model=16, heads=2, seq=8, batch=4))
    threads, divided = torch.get_num_threads(), []
    of_rank = TorchExecutor.of_rank
    monkeypatch.setattr(TorchExecutor, "of_rank", lambda *place: divided.append(place[1]) or of_rank(*place))

    async def alone():
        (transport,) = world(1)
        return await measure(
            transport, model, ALONE, sizes=[1, 2], stated=Machine(), ranks=2, progress=lambda line: None
        )

    try:
        found = asyncio.run(alone())
    finally:
        torch.set_num_threads(threads)
    assert divided == [2], "one rank measures with the threads that it would have beside the other"
    for op in "FBW":
        assert found.costs.seconds(op, range(0, 4), 2) > found.costs.runtime
    assert found.costs.seconds("I", range(0, 2), 1) >= found.costs.runtime >= 0
    assert found.costs.seconds("U", range(0, 4), 1) > 0
    result = search(SearchRequest(model, found.costs, found.machine, 2))
    assert result.chosen.step_s <= result.baseline.step_s
