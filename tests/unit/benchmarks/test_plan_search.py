"""The costs of a search with teams: a row for each memory limit, and more of it never makes the step longer."""

from benchmarks.plan_search import as_table, searched


def test_each_limit_has_a_row_and_more_memory_no_longer_step():
    little, much = (searched("tiny", 2, limit) for limit in (0.02, 1.0))
    assert little["memory_gib"] <= 0.02 and much["step_s"] <= little["step_s"]
    assert 0 < much["simulated"] <= much["considered"]
    assert all(str(row["simulated"]) in as_table([little, much]) for row in (little, much))
