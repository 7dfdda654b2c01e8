"""The benchmark of the searches for clusters counts what it says."""

from benchmarks.ravnest_formation import compare, table, time_large


def test_the_search_with_descent_is_as_good_as_the_exhaustive_one_and_the_paper_s_is_not_better():
    found = compare(8, 4, 7, seed=3)
    assert found["pools"] == 8 and 7 <= found["descended"] <= 8 and found["paper"] <= 8
    large = time_large(20)
    assert large["clusters"] == 2 and large["descended"]["spread_s"] is not None
    told = table({"small": [found], "large": large})
    assert "  4-7" in told and "20 nodes, 2 clusters, descended: spread" in told
