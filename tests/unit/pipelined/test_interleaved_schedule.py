"""Interleaved 1F1B: the bubble is a v-th, the order is in rounds of P, and what it refuses."""

import pytest

from pipelined.checker import check
from pipelined.pricer import Costs, price
from pipelined.recorder import record
from pipelined.schedules import ScheduleError, Shape, find

interleaved = find("interleaved")


def recorded(workers, chunks, microbatches):
    program = record(interleaved, Shape(workers * chunks, microbatches, chunks=chunks))
    check(program)
    return program


def test_the_order_of_two_workers_with_two_stages_each():
    order = [" ".join(f"{i.stage}{i.op}{i.microbatch}" for i in worker) for worker in recorded(2, 2, 4).workers]
    assert order == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
def test_the_bubble_is_a_part_of_1f1b_s(workers, chunks):
    for microbatches in range(workers, 4 * workers + 1, workers):
        program = recorded(workers, chunks, microbatches)
        for forward, backward in [(1, 1), (1, 2), (3, 2)]:
            priced = price(program, Costs(forward, backward))
            slots = microbatches * chunks + workers - 1
            assert priced.makespan == slots * (forward + backward)
        assert priced.weight_copies == [chunks] * workers


def test_the_bubble_at_depth_32():
    whole = 4 * (1 + 2)
    assert price(recorded(8, 4, 32), Costs(1, 2)).makespan == 32 * whole + 7 * whole / 4


@pytest.mark.parametrize("workers, chunks", [(2, 2), (4, 2), (4, 3), (8, 2)])
def test_as_many_stage_inputs_are_alive_as_its_warm_up_and_one(workers, chunks):
    for microbatches in (workers, 4 * workers):
        peaks = price(recorded(workers, chunks, microbatches), Costs()).peak_activations
        warm_up = [(chunks - 1) * workers + 2 * (workers - 1 - w) for w in range(workers)]
        assert peaks == [min(microbatches * chunks, n + 1) for n in warm_up]


def test_one_chunk_is_1f1b():
    for microbatches in (4, 8):
        shape = Shape(4, microbatches)
        assert record(interleaved, shape).workers == record(find("one_f_one_b"), shape).workers


@pytest.mark.parametrize(
    "shape, message",
    [
        (Shape(8, 6, chunks=2), "(microbatches: 6, workers: 4); use --microbatches 4 or 8"),
        (Shape(8, 3, chunks=2), "(microbatches: 3, workers: 4); use --microbatches 4"),
        (Shape(8, 8, chunks=3), "(depth: 8, chunks: 3); use --depth 6 or 9"),
        (Shape(2, 8, chunks=3), "(depth: 2, chunks: 3); use --depth 3"),
        (Shape(8, 8, chunks=0), "--chunks must be at least 1 (it is 0)"),
        (Shape(8, 8, 2, 2), "interleaved has one pipe (pipes: 2)"),
        (Shape(8, 8, chunks=2, scale="backward-halving"), "use --scale direct"),
    ],
)
def test_an_impossible_shape_is_refused_with_the_remedy(shape, message):
    with pytest.raises(ScheduleError) as caught:
        interleaved.layout(shape)
    assert message in str(caught.value)
