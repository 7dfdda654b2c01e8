"""The benchmark of what clusters learn: they do what its table says, and it sees a promise that is not kept."""

import pytest

from benchmarks.ravnest_learning import Options, rows_of, table, trained


@pytest.mark.in_turns(2)
def test_two_clusters_train_half_of_the_updates_each_with_rounds_that_last_four_updates():
    found = trained(Options(steps=40, scored=1 << 13), "two clusters", 0)
    assert found["updates"] == 80 and 3.5 < found["lag"] < 4.5 and found["staleness"] == [2.0, 1.0, 0.0]
    assert found["loss"] < 3.2, "it learns; the logarithm of 256 is 5.5"


def test_a_promise_that_is_not_kept_is_reported():
    losses = {"synchronous": 2.0, "one cluster": 2.02, "one cluster, newest": 2.04, "one cluster, half": 2.1}
    results = {
        name: [{"loss": loss - 0.1, "updates": 1}, {"loss": loss + 0.1, "updates": 1}] for name, loss in losses.items()
    }
    rows = rows_of({**results, "two clusters": [{"loss": 2.09, "updates": 1}]})
    assert [row.get("kept") for row in rows] == [None, True, True, None, False, True]
    assert table(rows).count("NOT kept") == 1
