"""What is written to a kept vector comes back, whatever the ranges, and nothing else was touched."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives._kept import Kept
from collectives._vector import KEPT_BYTES, Vector

LENGTH = 40
spans = st.tuples(st.integers(0, LENGTH), st.integers(0, LENGTH)).map(sorted)


def keeping(array):
    vector = Vector.of(array)
    kept = Kept(vector, memoryview(bytearray(vector.nbytes)))
    return kept, vector.watched(kept.keep)


@given(st.lists(spans, max_size=12), st.randoms(use_true_random=False))
def test_what_was_written_to_any_ranges_in_any_order_comes_back(ranges, random):
    array = np.arange(LENGTH)
    kept, vector = keeping(array)
    for low, high in ranges:
        vector.keep(low, high)
        array[low:high] = random.randrange(100, 200)
    kept.restore()
    assert (array == np.arange(LENGTH)).all()


def test_a_slice_keeps_where_it_lies():
    array = np.arange(10.0)
    kept, vector = keeping(array)
    part = vector.slice(2, 8).slice(1, 4)
    part.keep(0, 2)
    array[3:5] = -1
    kept.restore()
    assert (array == np.arange(10)).all()


def test_what_nobody_wrote_to_is_not_touched():
    """It may hold what came after: only the ranges that were said are given back."""
    array = np.arange(10.0)
    kept, vector = keeping(array)
    vector.keep(0, 3)
    array[:] = 7
    kept.restore()
    assert array.tolist() == [0, 1, 2, 7, 7, 7, 7, 7, 7, 7]


@pytest.mark.parametrize("length", [1, KEPT_BYTES // 4, KEPT_BYTES // 4 + 1, KEPT_BYTES])
def test_a_range_is_kept_in_parts_that_follow_one_another(length):
    array = np.arange(length + 2, dtype=np.float32)
    kept, vector = keeping(array)
    at = 1
    for low, high in vector.kept(1, length + 1):
        assert low == at < high <= low + KEPT_BYTES // 4
        array[low:high], at = 0, high
    assert at == length + 1
    kept.restore()
    assert (array == np.arange(length + 2)).all()


def test_a_vector_that_nobody_watches_is_written_to_whole():
    assert list(Vector.of(np.ones(1 << 20)).kept(3, 1 << 19)) == [(3, 1 << 19)]
