"""ZB-H1 and ZB-V: their orders, bubbles and peaks, where they are known in closed form."""

import pytest

from pipelined.checker import check
from pipelined.pricer import Costs, price
from pipelined.recorder import record
from pipelined.schedules import ScheduleError, Shape, find


def recorded(name, depth, microbatches):
    program = record(find(name), Shape(depth, microbatches))
    check(program)
    return program


def halves(forward, backward_input, backward_weight):
    return Costs(forward, backward_input + backward_weight, backward_input, backward_weight)


def order(program):
    return [" ".join(f"{i.op}{i.microbatch}" for i in worker) for worker in program.workers]


def test_weight_halves_are_put_off_by_the_worker_s_index():
    assert order(recorded("zb_h1", 3, 3)) == [
        "F0 F1 F2 I0 W0 I1 W1 I2 W2",
        "F0 F1 I0 F2 I1 W0 I2 W1 W2",
        "F0 I0 F1 I1 F2 I2 W0 W1 W2",
    ]


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5, 8, 16, 32])
@pytest.mark.parametrize("costs", [(1, 1, 1), (2, 2, 1), (3, 2, 1), (10, 3, 2), (11, 11, 9), (4, 4, 0)])
def test_zb_h1_has_its_bubble_from_depth_microbatches_up(depth, costs):
    forward, backward_input, backward_weight = costs
    for microbatches in (depth, depth + 1, 4 * depth) if depth < 16 else (depth,):
        priced = price(recorded("zb_h1", depth, microbatches), halves(*costs))
        bubble = priced.makespan - microbatches * sum(costs)
        assert bubble == (depth - 1) * (forward + backward_input - backward_weight)


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 7])
def test_zb_h1_keeps_as_many_alive_on_every_worker_as_1f1b_on_its_first(depth):
    for microbatches in range(1, 4 * depth + 1):
        peaks = price(recorded("zb_h1", depth, microbatches), Costs()).peak_activations
        assert peaks == [min(microbatches, depth)] * depth


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 5, 8])
def test_zb_v_waits_for_its_first_microbatch_alone(workers):
    for microbatches in range(2 * workers - 1, 8 * workers + 1, 1 if workers < 4 else 5):
        priced = price(recorded("zb_v", 2 * workers, microbatches), halves(1, 1, 1))
        assert priced.makespan == 6 * microbatches + workers - 1
        assert priced.peak_activations == [2 * workers] * workers
        assert priced.weight_copies == [2] * workers


def test_zb_v_at_depth_32():
    assert price(recorded("zb_v", 32, 32), halves(1, 1, 1)).makespan == 6 * 32 + 15


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_fewer_microbatches_keep_zb_v_s_order_and_take_no_more_memory(workers):
    longest = recorded("zb_v", 2 * workers, 2 * workers - 1)
    for microbatches in range(1, 2 * workers - 1):
        program = recorded("zb_v", 2 * workers, microbatches)
        kept = tuple(tuple(i for i in worker if i.microbatch < microbatches) for worker in longest.workers)
        assert program.workers == kept
        assert max(price(program, Costs()).peak_activations) <= 2 * workers


@pytest.mark.parametrize("name", ["zb_v", "dualpipe_v"])
def test_a_fold_takes_two_chunks_and_they_need_not_be_asked_for(name):
    layout = find(name).layout(Shape(6, 4, chunks=2))
    assert layout == find(name).layout(Shape(6, 4))
    assert [layout.stages_of(worker) for worker in range(layout.workers)] == [[0, 5], [1, 4], [2, 3]]


@pytest.mark.parametrize("name", ["zb_v", "dualpipe_v"])
@pytest.mark.parametrize(
    "shape, message",
    [
        (Shape(6, 4, chunks=3), "folds two stages onto each worker (chunks: 3); use --chunks 2"),
        (Shape(5, 4, chunks=2), "needs an even depth (depth: 5); use --depth 4 or 6, or"),
        (Shape(6, 4, pipes=2), "has one pipe (pipes: 2)"),
        (Shape(6, 4, scale="forward-doubling"), "use --scale direct"),
    ],
)
def test_what_cannot_be_folded_is_refused_with_the_remedy(name, shape, message):
    with pytest.raises(ScheduleError) as caught:
        find(name).layout(shape)
    assert message in str(caught.value)
