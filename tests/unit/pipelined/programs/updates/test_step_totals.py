"""Every rank derives the same norm, loss and decision from one exact sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.programs.updates.step_totals import StepTotals


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.integers(1, 5))
def test_norm_and_loss_do_not_depend_on_which_rank_wrote_an_entry(values, ranks):
    names = [f"p{i}" for i in range(len(values))]
    totals = StepTotals(names, len(values))
    squares, losses = dict(zip(names, values, strict=True)), dict(enumerate(values))
    alone = totals.entry(squares, losses, 1.0, False)
    shared = np.zeros(len(totals))
    for rank in range(ranks):
        mine = [i for i in range(len(values)) if i % ranks == rank]
        shared += totals.entry({names[i]: values[i] for i in mine}, {i: values[i] for i in mine}, 1.0, False)
    assert totals.norm(shared) == totals.norm(alone)
    assert totals.loss(shared) == totals.loss(alone) == pytest.approx(sum(values) / len(values))
    assert totals.weight(shared) == 1.0
    assert totals.norm(alone) == pytest.approx(sum(values) ** 0.5)


def test_sums_are_divided_by_their_counts_and_gradients_too():
    totals = StepTotals(["p"], 3)
    total = totals.entry({}, {0: 6.0, 2: 1.0}, 1.0, False, count=5.0) + totals.entry(
        {}, {1: 0.0}, 1.0, False, count=0.0
    )
    assert totals.loss(total) == 7 / 5 and totals.weight(total) == 3 / 5
    nothing = totals.entry({}, {0: 0.0}, 1.0, False, count=0.0)
    assert np.isnan(totals.loss(nothing)) and np.isnan(totals.weight(nothing))


def test_a_stop_request_of_one_rank_stops_all():
    totals = StepTotals(["p"], 1)
    total = sum(totals.entry({}, {}, busy=float(r), stop=r == 2) for r in range(3))
    assert totals.stop(total)
    assert totals.busy(total) == 1.0


def test_what_is_summed_does_not_grow_with_the_ranks_and_is_exact_in_any_order():
    totals = StepTotals(["p"], 1)
    entries = [totals.entry({}, {}, 0.1 * rank + 1e-7, stop=False, nbytes=2**40 + rank) for rank in range(4096)]
    assert len(entries[0]) == 7
    assert totals.nbytes(sum(entries)) == 2**52 + 4095 * 2048
    assert totals.busy(sum(entries)) == totals.busy(sum(reversed(entries)))
    assert totals.busy(sum(entries)) == pytest.approx(0.1 * 4095 / 2)
    assert not totals.stop(sum(entries))
