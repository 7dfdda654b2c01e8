"""GEMS: one microbatch at a time, from both ends."""

import pytest

from pipelined.checker import check
from pipelined.pricer import Costs, price
from pipelined.recorder import record
from pipelined.schedules import ScheduleError, Shape, find

gems = find("gems")


def timeline(depth, microbatches, costs):
    program = record(gems, Shape(depth, microbatches))
    check(program)
    return price(program, Costs(*costs))


def test_the_known_table():
    assert timeline(4, 4, (1, 1)).makespan == 23
    priced = timeline(4, 4, (1, 2))
    assert (priced.makespan, priced.peak_activations, priced.weight_copies) == (39, [1] * 4, [2] * 4)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 7, 8, 32])
@pytest.mark.parametrize("costs", [(1, 1), (1, 2), (3, 2), (2, 5)])
def test_the_next_forward_follows_the_last_backward(depth, costs):
    forward, backward = costs
    for microbatches in range(1, 4 * depth + 1) if depth < 8 else (1, 2, 9):
        priced = timeline(depth, microbatches, costs)
        between = depth * max(costs) + min(costs)
        assert priced.makespan == depth * forward + (microbatches - 1) * between + depth * backward
        assert priced.peak_activations == [1] * depth


def test_microbatches_take_turns():
    assert gems.layout(Shape(4, 5)).microbatches == ((0, 2, 4), (1, 3))


@pytest.mark.parametrize(
    "shape, message",
    [
        (Shape(4, 4, pipes=4), "gems has 2 pipes (pipes: 4); leave --pipes out"),
        (Shape(4, 4, chunks=2), "(chunks: 2); use --chunks 1"),
        (Shape(4, 4, scale="forward-doubling"), "(scale: forward-doubling); use --scale direct"),
    ],
)
def test_an_impossible_shape_is_refused_with_the_remedy(shape, message):
    with pytest.raises(ScheduleError) as caught:
        gems.layout(shape)
    assert message in str(caught.value)
