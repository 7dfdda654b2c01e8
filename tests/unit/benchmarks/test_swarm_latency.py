"""The emulated swarm obeys the law where one microbatch is in flight, and beats it where there are queues."""

import pytest

from benchmarks._swarm_model import Setting, Work, batch
from benchmarks.swarm_latency import RTTS_MS, TABLE_1, Cost, cost, fleets, latency, table_1_work, together, widths


def test_one_microbatch_alone_takes_its_messages_and_its_work_one_after_another():
    work = Work(1.0, 3.0, (10.0, 20.0), (30.0, 40.0))
    taken = batch(Setting([[1.0], [2.0]], work, bandwidth=100.0, microbatches=1), lambda: 0.5)
    assert taken.seconds == pytest.approx((4 + 2) + 2 * 1.0 + 2 * 4 * 0.5)
    assert taken.busy == [[4.0], [2.0]] and taken.served == [[2], [2]]


def test_with_queues_the_slowest_thing_is_always_busy():
    taken = batch(Setting([[1.0], [1.0]], Work(1.0, 3.0), in_flight=8, microbatches=200), lambda: 0.5)
    assert taken.utilisation > 0.97
    bound_by_line = Setting([[1.0]], Work(0.1, 0.1, (100.0, 0.0)), bandwidth=100.0, in_flight=16, microbatches=200)
    assert batch(bound_by_line).seconds == pytest.approx(200, rel=0.02)


CELLS = [("base", 4), ("Ours", 1), ("Ours", 4)]
ALL = [(model, at) for model in TABLE_1 for at in range(len(RTTS_MS))]


@pytest.mark.parametrize("model, at", [*CELLS, *(pytest.param(*cell, marks=pytest.mark.full) for cell in ALL)])
def test_one_in_flight_follows_the_law_and_the_paper(model, at):
    cell = latency(model, at, queues=())
    assert cell.within, cell.line()


def test_the_law_s_costs_are_those_of_the_first_two_rows():
    work = table_1_work("base")
    assert work.seconds == pytest.approx(6.86e-3, rel=0.01)
    assert latency("base", 0, ()).law == pytest.approx(18.0) and latency("base", 1, ()).law == pytest.approx(11.8)


def test_queues_beat_the_law():
    cell = latency("xxlarge", 3, queues=(4,))
    assert cell.queued[4] > 3 * cell.law


def test_latency_costs_the_swarm_little_where_gpipe_loses_much():
    row = cost("GPT-3", microbatches=1500)
    assert row.within and row.gpipe == pytest.approx(row.paper_gpipe, abs=0.5)


@pytest.mark.parametrize("gpipe, swarm, kept", [(33, 12, True), (32, 5, False), (40, 13, False)])
def test_a_row_says_whether_the_promise_was_kept(gpipe, swarm, kept):
    assert Cost("x", 33, gpipe, 11, swarm).within == kept


def test_a_mixed_fleet_does_nearly_what_its_parts_do():
    assert together(fleets()) >= 0.85


def test_wider_layers_use_their_devices_better_and_8_bits_twice_as_well():
    found = widths()
    for column in ("one", "one_8bit", "queued", "queued_8bit"):
        values = [getattr(each, column) for each in found]
        assert values == sorted(values)
    narrow = found[0]
    assert narrow.one_8bit == pytest.approx(2 * narrow.one, rel=0.05)
    assert all(each.queued >= each.one and each.one_8bit > each.one for each in found)
