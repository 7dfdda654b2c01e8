"""What the benchmark of endpoints measures runs."""

import pytest

from benchmarks import endpoints
from benchmarks.harness.ranks import launch


@pytest.mark.full
def test_a_small_pair_is_measured():
    options = endpoints.Options(
        sizes=(64,), rounds=2, bytes_a_turn=1 << 10, in_flight=2, long_bytes=1 << 20, seconds=0.1
    )
    found = launch("benchmarks.links.endpoint_pair", 2, vars(options))
    assert found["asks_s"] > 0 and found["beside"]["short_s"] > 0
    assert "answered a second" in endpoints.sentences(options, found)
    assert len(endpoints.table(endpoints.rows(found["times"])).splitlines()) == 2
