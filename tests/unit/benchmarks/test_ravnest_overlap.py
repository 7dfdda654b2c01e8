"""The benchmark of what rounds and late clusters cost: rounds cost little, and are counted in updates."""

import pytest

from benchmarks.ravnest_overlap import Options, late, rounds, table


@pytest.mark.in_turns(4)
def test_rounds_of_half_the_time_between_them_cost_at_most_a_twentieth(one_thread):
    found = rounds(Options(width=16, rate=0.4e6, steps=16))
    assert min(found["shares"]) >= 0.95
    assert 0 < found["updates_of_a_round"] <= found["updates_between"] == 16
    late = {"trains_after_s": 1.0, "bound_s": 1.1, "lost_s": [0.1, 0.2]}
    said = table({"rounds": found, "late": late, "backup": late})
    assert said.count("the others lose 0.10, 0.20 s, at most 20.0% of it") == 2


@pytest.mark.in_turns(4)
@pytest.mark.timeout(300)
def test_a_late_cluster_trains_when_its_bytes_are_there_and_costs_the_others_at_most_a_twentieth(one_thread):
    """What they lose is one drain and refill of the pipe: beside a transfer of 2.7 s."""
    found = late(Options(rate=0.65e6, late_width=64, late_steps=100, joined_s=0.6))
    assert found["clusters"] == 3
    assert found["trains_after_s"] <= 1.2 * found["bound_s"]
    assert max(found["lost_s"]) <= 0.05 * found["trains_after_s"], found
