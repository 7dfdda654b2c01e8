"""What is watched is told of exactly once: its outcome, or why nobody asks any more."""

import pytest

from transports._watched import Watched


def watched(outcomes):
    """Watches requests whose outcomes are put into a dict."""
    return Watched(lambda requests: [(n, outcomes.pop(r)) for n, r in enumerate(list(requests)) if r in outcomes])


def test_each_is_told_of_once_and_then_forgotten():
    outcomes, told = {}, []
    some = watched(outcomes)
    for name in "abc":
        some.watch(name, lambda outcome, name=name: told.append((name, outcome)))
    assert not some.poll()
    outcomes.update(c=3, a=1)
    assert some.poll() and told == [("a", 1), ("c", 3)]
    assert not some.poll() and some.requests == ["b"]


def test_what_somebody_else_saw_is_told_and_not_asked_about_again():
    outcomes, told = {}, []
    some = watched(outcomes)
    some.watch("a", told.append)
    some.watch("b", told.append)
    some.settle("b", 2)
    outcomes.update(a=1, b="twice")
    assert some.poll() and told == [2, 1] and some.requests == []


def test_several_are_told_of_together_by_the_first_failure():
    broken, outcomes, told = ValueError("broken"), {}, []
    some = watched(outcomes)
    some.watch_all("abc", told.append)
    outcomes.update(a=1, b=broken)
    assert some.poll() and told == []
    outcomes["c"] = 3
    assert some.poll() and told == [broken]
    some.watch_all((), told.append)
    assert told == [broken, None]


def test_what_is_called_may_watch_more():
    outcomes, told = {"a": 1, "b": 2}, []
    some = watched(outcomes)
    some.watch("a", lambda outcome: some.watch("b", told.append))
    assert some.poll() and some.poll() and told == [2]


@pytest.mark.parametrize("came", [False, True])
def test_news_without_a_request_counts_as_something_that_happened(came):
    some = watched({})
    some.listen(lambda: came)
    assert some.poll() is came


def test_after_giving_up_everybody_learns_the_first_reason():
    first, told = ValueError("first"), []
    some = watched({})
    some.watch("a", told.append)
    assert some.fail(first) == ["a"]
    assert some.fail(ValueError("later")) == []
    some.watch("b", told.append)
    some.watch_all("cd", told.append)
    assert told == [first] * 3 and some.failure is first and some.requests == []
