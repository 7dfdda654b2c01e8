"""What the benchmark of endpoints makes of what it measures, and that what it measures runs."""

import pytest

from benchmarks import endpoints
from benchmarks._ranks import launch, spread


def test_ratios_are_taken_within_a_round():
    (row,) = endpoints.rows([(8, {"bare": [1.0, 2.0, 4.0], "ask": [2.0, 2.0, 2.0]})])
    assert (row["seconds"], row["gbytes_s"], row["bare_s"]) == (2.0, 4e-9, 2.0)
    assert row["over_bare"] == spread([0.5, 1.0, 2.0])
    assert "1.00 (0.50-2.00)" in endpoints.line(row)


@pytest.mark.full
def test_a_small_pair_is_measured():
    options = endpoints.Options(
        sizes=(64,), rounds=2, bytes_a_turn=1 << 10, in_flight=2, long_bytes=1 << 20, seconds=0.1
    )
    found = launch("benchmarks._endpoint_pair", 2, vars(options))
    assert found["asks_s"] > 0 and found["beside"]["short_s"] > 0
    assert "answered a second" in endpoints.sentences(options, found)
    assert len(endpoints.table(endpoints.rows(found["times"])).splitlines()) == 2
