"""The benchmark of the searches for clusters counts what it says."""

from benchmarks.ravnest_formation import compare, table, time_large


def test_the_search_with_descent_is_as_good_as_the_exhaustive_one_and_the_paper_s_is_not_better():
    found = compare(8, 4, 7, seed=3)
    assert found["pools"] == 8 and 7 <= found["descended"] <= 8 and found["paper"] <= 8
    large = time_large(30, 96)
    assert large["clusters"] == large["descended"]["cut"] == 3 and large["descended"]["spread_s"] < 1
    assert 3 < large["memory"] < 4
    told = table({"small": [found], "large": [large]})
    assert "  4-7" in told and "30 nodes, 3 clusters, RAM 3.5 x" in told and "descended: spread" in told


def test_a_pool_that_cannot_be_cut_has_no_spread():
    found = time_large(20, 192)
    assert found["descended"]["spread_s"] is None and found["descended"]["cut"] == 0
    assert "descended: none found, 0 with a cut" in table({"small": [], "large": [found]})
