"""The comparison of searches: every search has its line, and none is below the best."""

from benchmarks.shard_search import BUDGETS, DRAWN, as_table, block, draw, figure_8


def test_every_search_is_compared_with_the_best(tmp_path):
    best, runs = figure_8(16, 2)
    assert best["space"] == 15**4
    assert len(runs) == 2 + 2 * len(DRAWN) * len(BUDGETS)
    assert min(run.cost for run in runs) == runs[0].cost == 1.0
    table = as_table({16: (best, runs)}, [block(32, 4)])
    assert all(name in table for name in ("dynamic", "exhaustive", *DRAWN, " zero"))
    draw({16: (best, runs)}, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000
