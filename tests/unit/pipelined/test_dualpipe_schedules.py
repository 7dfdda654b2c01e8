"""DualPipe and DualPipe-V: their orders, bubbles and peaks, where they are known in closed form, and where they end."""

import pytest

from pipelined.checker import check
from pipelined.pricer import Costs, price
from pipelined.recorder import record
from pipelined.schedules import ScheduleError, Shape, find

BALANCED = [(1, 1, 1), (2, 2, 1), (3, 2, 1), (5, 4, 3), (11, 11, 9), (4, 4, 0)]
"""Wg <= I <= F <= I + Wg."""


def recorded(name, depth, microbatches):
    program = record(find(name), Shape(depth, microbatches))
    check(program)
    return program


def bubble(program, microbatches, costs, parts=1):
    forward, backward_input, backward_weight = costs
    priced = price(program, Costs(forward, backward_input + backward_weight, backward_input, backward_weight))
    return priced.makespan - parts * microbatches * sum(costs)


def order(program):
    return [" ".join(f"{i.stage}{i.op}{i.microbatch}" for i in worker) for worker in program.workers]


def test_the_eight_phases_of_two_workers():
    assert order(recorded("dualpipe", 2, 4)) == [
        "0F0 1F2 0F1 1I2 1W2 1F3 0I0 0W0 1I3 1W3 0I1 0W1",
        "0F2 1F0 0F3 1I0 1W0 1F1 0I2 0W2 1I1 1W1 0I3 0W3",
    ]


@pytest.mark.parametrize("depth", [2, 4, 6, 8, 16])
@pytest.mark.parametrize("costs", BALANCED)
def test_dualpipe_has_its_bubble_from_twice_the_depth_up(depth, costs):
    for microbatches in (2 * depth, 2 * depth + 2, 4 * depth) if depth < 8 else (2 * depth,):
        program = recorded("dualpipe", depth, microbatches)
        forward, backward_input, backward_weight = costs
        wanted = (depth // 2 - 1) * (forward + backward_input - backward_weight)
        assert bubble(program, microbatches, costs) == wanted


@pytest.mark.parametrize("depth", [2, 4, 6, 8])
def test_dualpipe_keeps_one_more_than_its_depth_alive_and_weights_twice(depth):
    for microbatches in (2 * depth, 4 * depth):
        priced = price(recorded("dualpipe", depth, microbatches), Costs())
        assert priced.peak_activations == [depth + 1] * depth
        assert priced.weight_copies == [2] * depth


@pytest.mark.parametrize("costs", [(4, 1, 1), (10, 3, 1), (7, 5, 0)])
def test_a_forward_longer_than_a_whole_backward_makes_the_bubble_longer(costs):
    forward, backward_input, backward_weight = costs
    assert bubble(recorded("dualpipe", 4, 8), 8, costs) > forward + backward_input - backward_weight


@pytest.mark.parametrize("depth", [2, 4, 6])
@pytest.mark.parametrize("name", ["dualpipe", "dualpipe_v"])
def test_fewer_or_an_odd_number_of_microbatches_take_no_more_memory(name, depth):
    for microbatches in range(1, 2 * depth):
        priced = price(recorded(name, depth, microbatches), Costs())
        assert max(priced.peak_activations) <= depth + 1


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("costs", BALANCED)
def test_dualpipe_v_has_the_bubble_of_half_as_many_workers(workers, costs):
    for microbatches in (2 * workers, 2 * workers + 1, 5 * workers):
        program = recorded("dualpipe_v", 2 * workers, microbatches)
        forward, backward_input, backward_weight = costs
        wanted = (workers - 1) * (forward + backward_input - backward_weight)
        assert bubble(program, microbatches, costs, parts=2) == wanted


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_dualpipe_v_is_dualpipe_cut_in_half(workers):
    whole, half = recorded("dualpipe", 2 * workers, 8 * workers), recorded("dualpipe_v", 2 * workers, 4 * workers)
    cut = [[(i.op, i.stage) for i in worker] for worker in whole.workers[:workers]]
    assert [[(i.op, i.stage) for i in worker] for worker in half.workers] == cut
    priced = price(half, Costs())
    assert priced.peak_activations == [2 * workers + 1] * workers
    assert priced.weight_copies == [2] * workers


@pytest.mark.parametrize(
    "shape, message",
    [
        (Shape(5, 10), "dualpipe needs an even depth (depth: 5); use --depth 4 or 6"),
        (Shape(4, 8, pipes=4), "dualpipe has 2 pipes (pipes: 4)"),
        (Shape(4, 8, chunks=2), "(chunks: 2); use --chunks 1"),
    ],
)
def test_an_impossible_shape_is_refused_with_the_remedy(shape, message):
    with pytest.raises(ScheduleError) as caught:
        find("dualpipe").layout(shape)
    assert message in str(caught.value)
