"""Measuring on ranks of this process: what comes out is of the right shape, and every kind of stage is priced."""

import asyncio
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from apps.gpt2.config import GPT2Flags
from apps.gpt2.planning.model_to_plan import planned_model_of
from collectives import Links
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.measurement.effort import BRIEF, THOROUGH
from pipelined.measurement.measure import measure, measured_machine
from pipelined.measurement.measured_costs import FIRST_INPUT, kinds_of
from pipelined.measurement.timed import stages
from pipelined.measurement.timed.member import MemberStage, team_size
from pipelined.measurement.timed.messages_and_sums import LinkFit, measure_hops, measure_sums
from pipelined.measurement.timed.probes import probes
from pipelined.measurement.timed.stages import MeasuringRank, measure_stages
from pipelined.measurement.timed.team_moves import measure_moves
from pipelined.measurement.timed.update import TimedUpdate
from pipelined.planner import SearchRequest, search
from pipelined.process.launch import ALONE
from pipelined.process.reporting.progress import say_nothing
from pipelined.programs.instructions import DELAYED_UPDATE, UPDATE
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding.operators.stage_record import run_to_end
from pipelined.simulation import Machine
from pipelined.training.job.numerics import Numerics
from tests.conformance.worlds import local_world
from transports.local import world


def alike(layers):
    return kinds_of([1.0] * layers)


def test_stages_are_timed_alone_with_a_neighbour_in_several_lengths_and_whole():
    assert probes(alike(6), THOROUGH) == [
        *(range(*ends) for ends in [(5, 6), (0, 1), (0, 2), (4, 6), (1, 2), (1, 3), (1, 5), (0, 6)])
    ]
    assert probes(alike(3), THOROUGH) == [range(2, 3), range(0, 1), range(0, 2), range(1, 3), range(1, 2), range(0, 3)]
    assert range(0, 66) not in probes(alike(66), THOROUGH)


def test_little_effort_still_reports_first_inner_and_last_layers_and_an_instruction_apart():
    assert probes(alike(6), BRIEF) == [range(5, 6), range(0, 1), range(1, 2), range(1, 3)]


def test_of_every_kind_of_layer_one_is_timed():
    kinds = kinds_of([1.0, 2.0, 3.0, 2.0, 5.0, 3.0, 5.0, 7.0, 8.0, 1.0])
    assert probes(kinds, BRIEF) == [
        range(9, 10),
        range(0, 1),
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


async def test_moves_are_timed_where_ranks_share_memory_and_price_those_of_teams_on_one_node():
    async def rank(transport):
        async with Actor(transport) as actor:
            return await measure_moves(actor, RealClock(), (0, 1), progress=lambda line: None, effort=BRIEF)

    links, *others = await asyncio.gather(*map(rank, local_world(2, shared_memory=True)))
    assert others == [{}]
    assert await asyncio.gather(*map(rank, world(2))) == [{}, {}], "these ranks share no memory"
    messages = dict.fromkeys(
        ["messages on a node", "sums on a node"], LinkFit(Links(), links["all_gather in shared memory"].fit)
    )
    memory = measured_machine({**messages, **links}, (0, 0), Machine(), 0).sum_links.memory
    for name, link in links.items():
        assert memory.seconds(name.split()[0], 1 << 20) == link.links.alpha + (1 << 20) * link.links.beta > 0
    assert measured_machine(messages, (0, 0), Machine(), 0).sum_links.memory is None


def test_what_is_measured_alone_prices_every_plan(monkeypatch):
    model = planned_model_of(GPT2Flags(layers=2, d_model=16, heads=2, seq=8, batch=4))
    threads, divided = torch.get_num_threads(), []
    open_executor = TorchExecutor.of_rank
    monkeypatch.setattr(
        TorchExecutor,
        "of_rank",
        lambda *place, **more: divided.append(more["ranks_sharing"]) or open_executor(*place, **more),
    )

    async def alone():
        (transport,) = world(1)
        return await measure(
            transport, model, ALONE, sizes=[1, 2], machine=Machine(), ranks=2, progress=lambda line: None
        )

    try:
        measurement = asyncio.run(alone())
    finally:
        torch.set_num_threads(threads)
    assert divided == [2], "one rank measures with the threads that it would have beside the other"
    for op in "FBW":
        assert measurement.costs.seconds(op, range(0, 4), 2) > measurement.costs.runtime
    assert measurement.costs.seconds("I", range(0, 2), 1) >= measurement.costs.runtime >= 0
    assert measurement.costs.seconds(UPDATE, range(0, 4), 1) > 0
    result = search(SearchRequest(model, measurement.costs, measurement.machine, 2))
    assert result.chosen.step_s <= result.baseline.step_s
    assert measurement.costs.member_costs is measurement.costs, "no plan has teams"


@pytest.mark.parametrize(
    ("long", "sizes_kept", "rounds", "probed"), [(0.0, {1}, 2, 3), (math.inf, {1, 2, 4}, BRIEF.rounds, 7)]
)
def test_sizes_rounds_and_stages_that_take_long_are_left_out_on_all_ranks_alike(
    monkeypatch, long, sizes_kept, rounds, probed
):
    """A GPT-2 XL's head on two cores: hours for 32 sequences, which cost as many times one."""
    for name in ("LONG_S", "LONG_STAGE_S", "ROUNDS_S"):
        monkeypatch.setattr(stages, name, long)
    model, runs, passes = (
        planned_model_of(GPT2Flags(layers=2, d_model=16, heads=2, seq=8, batch=4)),
        [],
        stages._Probe.passes,
    )
    monkeypatch.setattr(stages._Probe, "passes", lambda self, size: runs.append((size, self)) or passes(self, size))
    effort = replace(BRIEF, max_rounds=BRIEF.min_rounds, neighbours=True, whole_layers=4)

    async def ranks():
        settings = {"sizes": [1, 2, 4], "machine": Machine(), "ranks": 2, "progress": say_nothing, "effort": effort}
        return await asyncio.gather(*(measure(end, model, ALONE, **settings) for end in world(2)))

    threads = torch.get_num_threads()
    try:
        measurement, _ = asyncio.run(ranks())
    finally:
        torch.set_num_threads(threads)
    assert {size for op, size in measurement.costs.timed if op not in (UPDATE, DELAYED_UPDATE)} == sizes_kept
    sizes, ranges = [size for size, _ in runs], {(probe._layers, id(probe._rank)) for _, probe in runs}
    assert set(sizes) == sizes_kept and sizes.count(1) % rounds == 0
    assert len(ranges) == probed * 2, "of each rank; where that takes long a layer of each kind alone"
    assert long or all(seconds[None] == 0.0 for seconds in measurement.costs.timed.values()), (
        "no fixed seconds beside them"
    )
    assert measurement.costs.seconds("F", range(0, 2), 8) > measurement.costs.seconds("F", range(0, 2), 1)


@pytest.mark.parametrize(("long", "order"), [(0.0, "FBFIW"), (math.inf, "FFBIW")])
async def test_where_a_forward_takes_long_one_microbatch_is_in_flight_and_else_two(monkeypatch, long, order):
    monkeypatch.setattr(stages, "LONG_FORWARD_S", long)
    model, ops, time = (
        planned_model_of(GPT2Flags(layers=2, d_model=16, heads=2, seq=8)),
        [],
        stages._Probe._time_pieces,
    )
    monkeypatch.setattr(
        stages._Probe, "_time_pieces", lambda self, *work: ops.extend(op for op, _ in work) or time(self, *work)
    )
    (transport,), executor = world(1), TorchExecutor("cpu", RealClock())
    async with Actor(transport) as actor:
        rank = MeasuringRank(actor, model.build(), model.numerics(), executor, model, measuring=True, effort=BRIEF)
        try:
            times = await stages._Probe(rank, range(1, 2), torch.ones(1)).passes(1)
        finally:
            executor.close()
    assert "".join(ops) == order and {op: len(seconds) for op, seconds in times.items()} == {
        **dict.fromkeys("BIW", 1),
        "F": 2,
    }


def test_where_workers_are_teams_the_stages_of_a_member_are_timed_too():
    model = planned_model_of(GPT2Flags(layers=2, d_model=16, heads=2, seq=8, batch=4, tensor=2))

    async def alone():
        (transport,) = world(1)
        return await measure(
            transport, model, ALONE, sizes=[1, 2], machine=Machine(), ranks=2, progress=lambda line: None, effort=BRIEF
        )

    threads = torch.get_num_threads()
    try:
        measurement = asyncio.run(alone())
    finally:
        torch.set_num_threads(threads)
    costs = measurement.costs.member_costs
    assert {size for op, size in costs.timed if op != UPDATE} == {1}, (
        "a team's microbatch of two, and none beyond the sizes"
    )
    assert {op for op, _ in costs.timed} == set("FBIWU"), "on the first stage, too, both halves compute"
    for op in "FBIW":
        seconds = [costs.timed[op, 1][kind] for kind in (None, *kinds_of(model.layer_costs))]
        assert costs.seconds(op, range(0, 4), 1) == pytest.approx(costs.runtime + sum(seconds))
    hand_over = measurement.values["hand_over"]
    assert costs.runtime == measurement.costs.runtime + 2 * hand_over and 0 < hand_over < 1
    rows = {row["op"]: row["seconds"].values() for row in measurement.values["member_costs"]}
    assert set(rows) == set("FBIWU")
    updates = [2 * seconds for seconds, _ in rows[UPDATE]]
    assert list(costs.timed[UPDATE, 0].values()) == updates, "as of a whole model, of which a member has a part"


async def test_a_member_alone_computes_its_share_and_waits_for_no_other():
    model = planned_model_of(GPT2Flags(layers=2, d_model=16, heads=2, seq=8, batch=4, tensor=2)).build_member()
    (transport,) = world(1)
    numerics = planned_model_of(GPT2Flags()).numerics()
    stage = MemberStage(model, range(1, 3), numerics, torch.device("cpu"), transport)
    piece, random = stage.piece(torch.ones(2, 8, 16)), KeyedRandom(0, 0, 0)
    stage.forward((0, 0), stage.message(torch.ones(2, 8, 16)), random)
    stage.backward((0, 0), piece, 1.0, random, None)
    assert team_size(model) == 2 and 2 * piece.numel() == 2 * 8 * 16
    weights = {name: weight for name, weight in stage.module.named_parameters() if name.endswith("mlp.c_proj.weight")}
    assert [2 * weight.numel() for weight in weights.values()] == [16 * 64] * 2
    assert all(weight.grad.abs().sum() > 0 for weight in weights.values())


def test_a_member_that_waits_is_refused():
    async def waits():
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="waits for something else"):
        run_to_end(waits())


async def test_the_end_of_a_step_is_timed_once_a_stage_and_values_are_made_once_a_size(monkeypatch):
    model = planned_model_of(GPT2Flags(layers=2, d_model=16, heads=2, seq=8, batch=4))
    ends, made, random_input = [], [], type(model).random_input
    monkeypatch.setattr(TimedUpdate, "_end", lambda update, updated: ends.append(update))
    monkeypatch.setattr(
        type(model), "random_input", lambda self, *place: made.append(place) or random_input(self, *place)
    )
    (transport,) = world(1)
    kinds = kinds_of(model.layer_costs)
    stages, sizes = probes(kinds, BRIEF), [1, 2]
    async with Actor(transport) as actor:
        executor, numerics = TorchExecutor("cpu", RealClock()), model.numerics()
        rank = MeasuringRank(actor, model.build(), numerics, executor, model, measuring=True, effort=BRIEF)
        try:
            await measure_stages(rank, model.layer_costs, sizes, lambda line: None)
        finally:
            executor.close()
    assert len(set(ends)) == len(stages)
    assert len(ends) <= len(stages) * (1 + BRIEF.warmup_rounds + BRIEF.max_rounds), "not once for each size"
    inner = sum(layers.start > 0 for layers in stages) + sum(layers.stop < len(kinds) for layers in stages)
    assert len(made) == 2 * inner * len(sizes), "two microbatches, the inputs and gradients that come from neighbours"


@pytest.mark.parametrize(("round_s", "rounds"), [(0.001, 1 + 2 + 12), (2.0, 5), (4.0, 2), (14.0, 2)])
async def test_the_rounds_of_a_stage_at_a_size_take_ten_seconds_or_are_two(round_s, rounds):
    rounds_run = []

    async def time_round():
        rounds_run.append(round_s)
        return {"F": [round_s]}

    (transport,) = world(1)
    rank = SimpleNamespace(actor=SimpleNamespace(transport=transport), numerics=Numerics(), effort=THOROUGH)
    times = await stages._time_on_all_ranks(rank, time_round, "F")
    assert len(rounds_run) == rounds and len(times["F"]) == (12 if rounds > 12 else rounds)


def test_the_weight_half_of_the_first_stage_is_the_whole_backward_which_is_timed_already():
    executor = SimpleNamespace(clock=RealClock(), device="cpu")
    rank = SimpleNamespace(executor=executor, model=None, numerics=Numerics(), effort=BRIEF, measuring=False)
    times = stages._StageTimes(rank, alike(4), [1], say_nothing)
    for layers in (range(0, 2), range(1, 2)):
        times._add(layers, 1, {op: [1.0] for op in "FBIW"})
    counts = {op: len(samples) for (op, _), samples in times.samples.items()}
    assert counts == {"F": 2, "B": 2, FIRST_INPUT: 1, "I": 1, "W": 1}
