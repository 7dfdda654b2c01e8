"""What is kept is disjoint and of this batch; what is missing is exactly the rest."""

from hypothesis import given
from hypothesis import strategies as st

from pipelined.swarm.leader.cover import cover

BATCH = 8
LEDGERS = st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.sets(st.integers(0, BATCH + 1)), max_size=6)


def test_disjoint_sums_are_all_kept():
    assert cover({"b": {2, 3}, "a": {0}}, 4) == (("a", "b"), (), {1})


def test_of_two_that_overlap_the_larger_is_kept_and_what_only_the_other_had_is_missing():
    assert cover({"a": {0, 1}, "b": {1, 2, 3}}, 5) == (("b",), ("a",), {0, 4})


def test_equal_ones_are_kept_by_name():
    assert cover({"b": {0, 1}, "a": {1, 2}}, 3) == (("a",), ("b",), {0})


def test_an_index_of_no_batch_spoils_its_sum():
    assert cover({"a": {0, 7}}, 2) == ((), ("a",), {0, 1})


def test_nobody_has_nothing():
    assert cover({}, 2) == ((), (), {0, 1})


@given(LEDGERS)
def test_kept_sums_are_disjoint_and_missing_is_the_rest(counted):
    kept = cover(counted, BATCH)
    assert sorted([*kept.keep, *kept.drop]) == sorted(counted)
    held = [index for name in kept.keep for index in counted[name]]
    assert sorted([*held, *kept.missing]) == list(range(BATCH))


@given(LEDGERS)
def test_who_is_dropped_overlaps_what_is_kept_or_is_of_another_batch(counted):
    kept = cover(counted, BATCH)
    held = set().union(*(counted[name] for name in kept.keep))
    for name in kept.drop:
        assert counted[name] & held or not counted[name] <= set(range(BATCH))
