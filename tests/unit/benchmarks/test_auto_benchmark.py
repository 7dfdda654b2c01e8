"""The grid of `auto`'s choices: a line a size and the share of good ones; what cannot be timed is refused."""

from benchmarks.auto import report


def row(ratio, chosen="ring"):
    return {"ranks": 2, "bytes": 1 << 20, "auto": chosen, "best": "shared", "ratio": ratio}


def test_a_choice_within_a_tenth_of_the_best_is_a_good_one():
    *_, last = report([row(1.0, "shared"), row(1.09), row(1.11), row(3.0)]).splitlines()
    assert last == "within 10% of the best: 50% of 4"
