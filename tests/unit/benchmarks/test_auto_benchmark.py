"""The grid of `auto`'s choices: a line a size and the share of good ones; what cannot be timed is refused."""

import pytest

from benchmarks.auto import Options, told
from pipelined.errors import UsageError


def row(ratio, chosen="ring"):
    return {"ranks": 2, "bytes": 1 << 20, "auto": chosen, "best": "shared", "ratio": ratio}


def test_a_choice_within_a_tenth_of_the_best_is_a_good_one():
    head, first, *_, last = told([row(1.0, "shared"), row(1.09), row(1.11), row(3.0)]).splitlines()
    assert head.split() == ["ranks", "KiB", "auto", "best", "ratio"]
    assert first.split() == ["2", "1024", "shared", "shared", "1.00"]
    assert last == "within 10% of the best: 50% of 4"


@pytest.mark.parametrize("options", [{"rounds": 0}, {"ranks": ()}, {"ranks": (1, 2)}])
def test_options_that_leave_nothing_to_compare_are_refused(options):
    with pytest.raises(UsageError, match=f"--{next(iter(options))} must be"):
        Options(**options)
