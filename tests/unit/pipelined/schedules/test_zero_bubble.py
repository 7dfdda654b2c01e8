"""ZB-H1 and ZB-V: their orders, and what they take below the microbatches of their closed forms."""

import pytest

from pipelined.programs.costs import Costs
from pipelined.programs.pricing.price import price
from pipelined.schedules import Shape, find
from tests.unit.pipelined.schedules.test_dualpipe import recorded


def order(program):
    return [" ".join(f"{i.op}{i.microbatch}" for i in worker) for worker in program.workers]


def test_weight_halves_are_put_off_by_the_worker_s_index():
    assert order(recorded("zb_h1", 3, 3)) == [
        "F0 F1 F2 I0 W0 I1 W1 I2 W2",
        "F0 F1 I0 F2 I1 W0 I2 W1 W2",
        "F0 I0 F1 I1 F2 I2 W0 W1 W2",
    ]


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_fewer_microbatches_keep_zb_v_s_order_and_take_no_more_memory(workers):
    longest = recorded("zb_v", 2 * workers, 2 * workers - 1)
    for microbatches in range(1, 2 * workers - 1):
        program = recorded("zb_v", 2 * workers, microbatches)
        kept = tuple(tuple(i for i in worker if i.microbatch < microbatches) for worker in longest.workers)
        assert program.workers == kept
        assert max(price(program, Costs()).peak_activations) <= 2 * workers


@pytest.mark.parametrize("name", ["zb_v", "dualpipe_v"])
def test_a_fold_takes_two_chunks_and_they_need_not_be_requested(name):
    stage_map = find(name).stage_map(Shape(6, 4, {"chunks": 2}))
    assert stage_map == find(name).stage_map(Shape(6, 4))
    assert [stage_map.stages_of(worker) for worker in range(stage_map.workers)] == [[0, 5], [1, 4], [2, 3]]
