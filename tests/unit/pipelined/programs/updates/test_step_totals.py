"""Every rank derives the same norm, loss and decision from one exact sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.programs.updates.step_totals import StepAccount, StepTotals


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.integers(1, 5))
def test_norm_and_loss_do_not_depend_on_which_rank_wrote_an_entry(values, ranks):
    names = [f"p{i}" for i in range(len(values))]
    totals = StepTotals(names, len(values))
    squares, losses = dict(zip(names, values, strict=True)), dict(enumerate(values))
    alone = totals.vector(StepAccount(losses, len(losses), squares))
    shared = np.zeros(len(totals))
    for rank in range(ranks):
        mine = [i for i in range(len(values)) if i % ranks == rank]
        account = StepAccount({i: values[i] for i in mine}, len(mine), {names[i]: values[i] for i in mine})
        shared += totals.vector(account)
    assert totals.norm(shared) == totals.norm(alone)
    assert totals.loss(shared) == totals.loss(alone) == pytest.approx(sum(values) / len(values))
    assert totals.weight(shared) == 1.0
    assert totals.norm(alone) == pytest.approx(sum(values) ** 0.5)


def test_sums_are_divided_by_their_counts_and_gradients_too():
    totals = StepTotals(["p"], 3)
    total = totals.vector(StepAccount({0: 6.0, 2: 1.0}, 5.0)) + totals.vector(StepAccount({1: 0.0}, 0.0))
    assert totals.loss(total) == 7 / 5 and totals.weight(total) == 3 / 5
    nothing = totals.vector(StepAccount({0: 0.0}, 0.0))
    assert np.isnan(totals.loss(nothing)) and np.isnan(totals.weight(nothing))


def test_a_stop_request_of_one_rank_stops_all():
    totals = StepTotals(["p"], 1)
    total = sum(totals.vector(StepAccount(), busy=float(r), stop=r == 2) for r in range(3))
    assert totals.stop(total)
    assert totals.busy(total) == 1.0


def test_what_is_summed_does_not_grow_with_the_ranks_and_is_exact_in_any_order():
    totals = StepTotals(["p"], 1)
    busy = [0.1 * rank + 1e-7 for rank in range(4096)]
    vectors = [totals.vector(StepAccount(), busy=busy[rank], nbytes=2**40 + rank) for rank in range(4096)]
    assert len(vectors[0]) == 7
    assert totals.nbytes(sum(vectors)) == 2**52 + 4095 * 2048
    assert totals.busy(sum(vectors)) == totals.busy(sum(reversed(vectors)))
    assert totals.busy(sum(vectors)) == pytest.approx(0.1 * 4095 / 2)
    assert not totals.stop(sum(vectors))
