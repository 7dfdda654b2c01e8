"""The comparison of schedules: what is run, what is simulated, and how orders are compared."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.pipelines.comparison import Row, inversions, makespan, rank_correlation
from benchmarks.pipelines.hops import fitted
from benchmarks.schedules import Measured, Options, compared, entries, plain, report
from collectives import Links
from pipelined.errors import UsageError

MIB = 1 << 20


def row(name: str, simulated: float, *steps: float) -> Row:
    return Row(name, 4, 4, 4, simulated, simulated, steps)


def test_every_schedule_with_a_flush_is_run_and_the_others_are_reported():
    chosen, refused = entries(Options(), ranks=4)
    assert {entry.name for entry in chosen} >= {"gpipe", "chimera", "chimera, forward-doubling", "chimera_w", "zb_v"}
    assert {entry.plan.microbatches for entry in chosen} == {4, 8, 16}
    assert any(reason.startswith("pipedream, N=4") for reason in refused)


def test_two_stages_of_a_pipe_on_a_rank_take_half_the_ranks():
    chosen, _ = entries(Options(microbatches=(4,)), ranks=4)
    assert {e.name for e in chosen if e.plan.world_size == 2} == {"interleaved", "zb_v", "dualpipe_v"}
    assert all(entry.plan.depth == 4 for entry in chosen)


def test_a_dynamic_schedule_is_run_in_its_recorded_order_too():
    chosen, _ = entries(Options(), ranks=4)
    assert {entry.name for entry in chosen if entry.recorded} == {"chimera_w, as recorded"}


def test_the_recorded_order_takes_as_long_as_the_dynamic_one_with_free_messages():
    chosen, _ = entries(Options(schedules="chimera_w"), ranks=4)
    dynamic, recorded = ([makespan(e, Options().costs) for e in chosen if e.recorded is kind] for kind in (False, True))
    assert dynamic == pytest.approx([0.13, 0.25, 0.49]) and recorded == pytest.approx([0.13, 0.25, 0.49])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(depth=8), "too few ranks"),
        (Options(schedules="pipedream"), "no schedule takes this shape"),
        (Options(schedules="nothing_known"), "known: "),
    ],
)
def test_what_cannot_be_compared_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        entries(options, ranks=4)


def test_the_links_carry_the_median_hop_of_either_size():
    links = fitted([1e-4, 2e-4, 9e-4], [7e-4, 5e-4, 6e-4], MIB)
    assert links.alpha == 2e-4 and math.isclose(links.alpha + links.beta * MIB, 6e-4)


def test_a_hop_is_paid_on_the_way_there_and_back():
    ((entry,), _) = entries(Options(schedules="gpipe", microbatches=(1,)), ranks=4)
    assert math.isclose(makespan(entry, Options().costs, Links(1e-3, 1e-3 / MIB, 0.0)), 4 * 0.030 + 6 * 2e-3)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=2, max_size=8))
def test_the_correlation_counts_every_inversion_once(pairs):
    rows = [row(str(i), float(a), float(b)) for i, (a, b) in enumerate(pairs)]
    apart = sum(a.simulated_s < b.simulated_s for a in rows for b in rows)
    crossed = sum(a.simulated_s < b.simulated_s and a.step_s > b.step_s for a in rows for b in rows)
    assert len(inversions(rows)) == crossed
    if apart:
        assert math.isclose(rank_correlation(rows), 1 - 2 * crossed / apart)


def test_the_report_has_every_row_and_the_links():
    options = Options(schedules="gpipe,chimera", microbatches=(4,))
    chosen, refused = entries(options, ranks=4)
    links, rows = compared(options, chosen, Measured([[0.17, 0.18, 0.19]] * len(chosen), [1e-4], [4e-4]))
    read = json.loads(json.dumps(plain(options, links, rows, refused)))
    assert len(read["rows"]) == 4 and read["alpha_s"] == 1e-4 and read["inversions"]["4"] == []
    assert report(links, rows, refused).count("gpipe") == 1
