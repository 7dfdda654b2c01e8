"""A swarm without faults is nearly as fast as 1F1B."""

import pytest

from benchmarks.swarm_throughput import Options, virtual


@pytest.mark.parametrize("width, rtt, jitter", [(1, 0.0, 0.0), (1, 5e-4, 0.0), (2, 5e-4, 0.0), (2, 2e-3, 1e-3)])
def test_a_swarm_without_faults_is_within_a_twentieth_of_1f1b(width, rtt, jitter):
    """Also where messages' times stray, and with them what trainers expect of peers that are alike."""
    row = virtual(Options(), width, 16, rtt, jitter)
    assert row.ours_s == (pytest.approx((16 + 3) * 0.04),)
    assert row.within, row.line()
