"""The benchmark of what clusters learn: they do what its table says."""

import pytest

from benchmarks.ravnest_learning import Options, trained


@pytest.mark.in_turns(4)
def test_two_clusters_train_half_of_the_updates_each_with_rounds_that_last_four_updates():
    found = trained(Options(steps=40, scored=1 << 13), "two clusters", 0)
    assert found["updates"] == 80 and 3.5 < found["lag"] < 4.5 and found["staleness"] == [2.0, 1.0, 0.0]
    assert found["loss"] < 3.2, "it learns; the logarithm of 256 is 5.5"
