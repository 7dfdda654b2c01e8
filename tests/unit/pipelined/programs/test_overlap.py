"""Which sums start early: exactly those after which their worker still has an idle gap."""

import pytest

from pipelined.programs.overlap import overlapped_stages
from pipelined.programs.price import Costs, price
from pipelined.programs.record import record
from pipelined.schedules import Shape, find


def timeline(depth, microbatches, name="chimera", pipes=0, costs=(1, 2)):
    return price(record(find(name), Shape(depth, microbatches, pipes)), Costs(*costs))


@pytest.mark.parametrize("depth", range(2, 18, 2))
@pytest.mark.parametrize("units", [1, 2, 3])
def test_with_two_pipes_they_are_the_stages_above_half_the_depth(depth, units):
    priced = timeline(depth, units * depth)
    expected = {(w, s) for w in range(depth) for s in priced.layout.stages_of(w) if s > depth / 2}
    assert overlapped_stages(priced) == expected


@pytest.mark.parametrize("name, pipes", [("chimera", 2), ("chimera", 4), ("one_f_one_b", 1), ("gpipe", 1)])
@pytest.mark.parametrize("microbatches", [1, 3, 4, 7, 8, 17])
def test_they_are_those_with_a_gap_between_their_last_backward_and_the_worker_s_last(name, pipes, microbatches):
    priced = timeline(8, microbatches, name, pipes)
    expected = set()
    for worker, done in enumerate(priced.workers):
        for stage in {timed.instruction.stage for timed in done}:
            last = max(timed.end for timed in done if timed.instruction.stage == stage)
            after = sum(timed.end - timed.start for timed in done if timed.start >= last)
            if done[-1].end - last > after:
                expected.add((worker, stage))
    assert overlapped_stages(priced) == expected


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b"])
def test_with_one_stage_a_worker_nothing_is_early(name):
    assert overlapped_stages(timeline(4, 8, name)) == frozenset()


def test_without_a_bubble_nothing_is_early():
    assert overlapped_stages(timeline(8, 8, pipes=8)) == frozenset()


def test_rounding_is_no_gap():
    priced = timeline(4, 4, costs=(0.1, 0.2))
    assert overlapped_stages(priced) == {(0, 3), (3, 3)}


@pytest.mark.parametrize("depth", range(2, 18, 2))
@pytest.mark.parametrize("units", [1, 2])
def test_with_whole_units_every_worker_finishes_its_stages_from_the_last_to_the_first(depth, units):
    for done in timeline(depth, units * depth).workers:
        finished = {timed.instruction.stage: timed.end for timed in done}
        by_time = sorted(finished, key=finished.get)
        assert by_time == sorted(finished, reverse=True)
