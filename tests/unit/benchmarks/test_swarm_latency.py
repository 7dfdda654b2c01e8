"""The emulated swarm obeys the law with one microbatch in flight, beats it with queues, and minds latency little."""

import pytest

from benchmarks.swarm.actors import flow, step
from benchmarks.swarm.devices import CodingTime, Work
from benchmarks.swarm.gpipe import flush_seconds
from benchmarks.swarm.setting import Actors
from benchmarks.swarm_latency import RTTS_MS, TABLE_1, TABLE_2, cost, latency, table_1_costs
from transports.emulation.options import LinkProfile


def test_one_microbatch_takes_its_work_its_messages_and_its_round_trips_one_after_another():
    work, rtt, tensor, rate = Work(1.0, 3.0), 0.5, 1 << 20, float(1 << 20)
    taken = flow(Actors([[1.0], [2.0]], work, 1, 1, rtt, rate, tensor), 2, 4)
    asks, passed = 3, 2 + 3 + 3
    assert taken.seconds / 4 == pytest.approx(4 + 2 + asks * rtt + passed * 1.0, rel=1e-2)
    assert taken.busy / 4 == pytest.approx(4 + 2)
    assert taken.answers == {"peer-0-0": 8, "peer-1-0": 4}


def test_what_coding_takes_comes_on_top_of_what_is_sent():
    plain = Actors([[1.0]] * 2, Work(1.0, 2.0), 1, 1, tensor=4e6, codec="fp16")
    coded = Actors([[1.0]] * 2, Work(1.0, 2.0), 1, 1, tensor=4e6, codec="fp16", coding=CodingTime(2e-8, 1e-8))
    more = (flow(coded, 2, 4).seconds - flow(plain, 2, 4).seconds) / 4
    assert more == pytest.approx(2e6 * (3 * 2e-8 + 5 * 1e-8), rel=1e-2)


def test_a_step_ends_with_its_commit():
    taken = step(Actors([[1.0]] * 2, Work(1.0, 2.0), 2, 4, rtt=0.1))
    assert taken.busy == 2 * 4 * 3.0 and taken.passes < taken.seconds < taken.passes + 2


CELLS = [("base", 4), ("xxlarge", 2), ("Ours", 1), ("Ours", 4)]
ALL = [(model, at) for model in TABLE_1 for at in range(len(RTTS_MS))]


@pytest.mark.parametrize("model, at", [*CELLS, *(pytest.param(*cell, marks=pytest.mark.full) for cell in ALL)])
def test_one_in_flight_follows_the_law_and_the_paper(model, at):
    cell = latency(model, at, queues=())
    assert cell.one == pytest.approx(cell.law, abs=0.1) and cell.kept, cell.line()


def test_the_law_s_costs_are_those_of_the_first_two_rows():
    work, tensor = table_1_costs("Ours")
    assert work.seconds == pytest.approx(7 / 4 * 0.01 / (1 / 0.872 - 1 / 0.895))
    assert tensor / 62.5e6 * 18 == pytest.approx((1 / 0.895 - 1) * 4 * work.seconds)


def test_queues_beat_the_law():
    cell = latency("Ours", 4, queues=(2,))
    assert cell.queued[2] == pytest.approx(100, abs=0.1) and cell.kept


def test_a_flush_of_gpipe_waits_for_each_hop_there_and_back():
    work = Work(1.0, 2.0)
    assert flush_seconds(4, 8, work, LinkProfile()) == (8 + 3) * 3
    assert flush_seconds(4, 8, work, LinkProfile(delay=0.5)) == (8 + 3) * 3 + 6 * 0.5
    assert flush_seconds(2, 4, work, LinkProfile(rate=1.0), tensor=10) == pytest.approx(4 * 10 + 1 + 1 + 4 * 10 + 2 + 2)


@pytest.mark.in_turns(4)
def test_latency_costs_the_swarm_little_where_gpipe_loses_much():
    row = cost("GPT-3", batch=240, queue=6, devices=(Work(0.105, 0.209), 886e3))
    assert row.kept and row.step < 2 * row.swarm + 12, row.line()


@pytest.mark.full
@pytest.mark.parametrize("model", TABLE_2)
def test_devices_are_such_that_gpipe_loses_what_it_lost_in_the_paper(model):
    row = cost(model, batch=64, queue=4)
    assert row.gpipe == pytest.approx(row.paper_gpipe, abs=0.5)
