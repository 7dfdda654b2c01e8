"""A swarm without faults is nearly as fast as 1F1B, and the benchmark reports when it is not."""

import pytest

from benchmarks.swarm_throughput import Options, Row, virtual


@pytest.mark.parametrize("width, rtt, jitter", [(1, 0.0, 0.0), (1, 5e-4, 0.0), (2, 5e-4, 0.0), (2, 2e-3, 1e-3)])
def test_a_swarm_without_faults_is_within_a_twentieth_of_1f1b(width, rtt, jitter):
    """Also where messages' times stray, and with them what trainers expect of peers that are alike."""
    row = virtual(Options(), width, 16, rtt, jitter)
    assert row.ours_s == (pytest.approx((16 + 3) * 0.04),)
    assert row.within, row.line()


def test_one_peer_a_stage_and_no_latency_is_1f1b_s_makespan():
    assert virtual(Options(), 1, 16, 0.0).ratio == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("swarm, kept", [((1.0, 1.05, 9.0), True), ((1.0, 1.06, 1.07), False)])
def test_a_row_is_judged_by_medians(swarm, kept):
    row = Row("processes", 1, 16, (1.0, 0.5, 3.0), swarm)
    assert row.within == kept and ("under" in row.line()) != kept


def test_a_row_reports_each_round_s_ratio():
    row = Row("processes", 1, 16, (1.0, 1.0, 4.0, 2.0, 2.0, 2.0), (1.0, 2.0, 2.0, 1.0, 1.0, 9.0), rounds=2)
    assert row.ratios == [0.5, 2.0] and "(0.500-2.000)" in row.line()
