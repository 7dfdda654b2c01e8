"""Every rank derives the same norm, loss and decision from one exact sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.programs.step_totals import Ledger


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.integers(1, 5))
def test_norm_and_loss_do_not_depend_on_who_wrote_which_entry(values, ranks):
    names = [f"p{i}" for i in range(len(values))]
    ledger = Ledger(names, len(values))
    squares, losses = dict(zip(names, values, strict=True)), dict(enumerate(values))
    alone = ledger.entry(squares, losses, 1.0, False)
    shared = np.zeros(len(ledger))
    for rank in range(ranks):
        mine = [i for i in range(len(values)) if i % ranks == rank]
        shared += ledger.entry({names[i]: values[i] for i in mine}, {i: values[i] for i in mine}, 1.0, False)
    assert ledger.norm(shared) == ledger.norm(alone)
    assert ledger.loss(shared) == ledger.loss(alone) == pytest.approx(sum(values) / len(values))
    assert ledger.norm(alone) == pytest.approx(sum(values) ** 0.5)


def test_one_rank_asked_to_stop_stops_all():
    ledger = Ledger(["p"], 1)
    total = sum(ledger.entry({}, {}, busy=float(r), stop=r == 2) for r in range(3))
    assert ledger.stop(total)
    assert ledger.busy(total) == 1.0


def test_what_is_summed_does_not_grow_with_the_ranks_and_is_exact_in_any_order():
    ledger = Ledger(["p"], 1)
    entries = [ledger.entry({}, {}, busy=0.1 * rank + 1e-7, stop=False) for rank in range(4096)]
    assert len(entries[0]) == 5
    assert ledger.busy(sum(entries)) == ledger.busy(sum(reversed(entries)))
    assert ledger.busy(sum(entries)) == pytest.approx(0.1 * 4095 / 2)
    assert not ledger.stop(sum(entries))
