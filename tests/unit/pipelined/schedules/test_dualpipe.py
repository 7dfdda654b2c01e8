"""DualPipe and DualPipe-V: their orders, and where their closed forms end."""

import pytest

from pipelined.programs.costs import Costs
from pipelined.programs.pricing.price import price
from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.schedules import Shape, find


def recorded(name, depth, microbatches):
    program = record(find(name), Shape(depth, microbatches))
    check(program)
    return program


def order(program):
    return [" ".join(f"{i.stage}{i.op}{i.microbatch}" for i in worker) for worker in program.workers]


def test_the_eight_phases_of_two_workers():
    assert order(recorded("dualpipe", 2, 4)) == [
        "0F0 1F2 0F1 1I2 1W2 1F3 0I0 0W0 1I3 1W3 0I1 0W1",
        "0F2 1F0 0F3 1I0 1W0 1F1 0I2 0W2 1I1 1W1 0I3 0W3",
    ]


@pytest.mark.parametrize("costs", [(4, 1, 1), (10, 3, 1), (7, 5, 0)])
def test_a_forward_longer_than_a_whole_backward_makes_the_bubble_longer(costs):
    forward, backward_input, backward_weight = costs
    seconds = Costs(forward, backward_input + backward_weight, backward_input, backward_weight)
    bubble = price(recorded("dualpipe", 4, 8), seconds).makespan - 8 * sum(costs)
    assert bubble > forward + backward_input - backward_weight


@pytest.mark.parametrize("depth", [2, 4, 6])
@pytest.mark.parametrize("name", ["dualpipe", "dualpipe_v"])
def test_fewer_or_an_odd_number_of_microbatches_take_no_more_memory(name, depth):
    for microbatches in range(1, 2 * depth):
        priced = price(recorded(name, depth, microbatches), Costs())
        assert max(priced.peak_activations) <= depth + 1


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_dualpipe_v_is_dualpipe_cut_in_half(workers):
    whole, half = recorded("dualpipe", 2 * workers, 8 * workers), recorded("dualpipe_v", 2 * workers, 4 * workers)
    cut = [[(i.op, i.stage) for i in worker] for worker in whole.workers[:workers]]
    assert [[(i.op, i.stage) for i in worker] for worker in half.workers] == cut
