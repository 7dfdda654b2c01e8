"""Segments and pieces cover what they cut, evenly and within their bounds."""

from hypothesis import given
from hypothesis import strategies as st

from collectives import segment, segments
from collectives.partition import pieces


@given(st.integers(0, 10_000), st.integers(1, 64))
def test_segments_cover_the_array_evenly(length, parts):
    cut = segments(length, parts)
    assert [high for _, high in cut[:-1]] == [low for low, _ in cut[1:]]
    assert (cut[0][0], cut[-1][1], len(cut)) == (0, length, parts)
    sizes = {high - low for low, high in cut}
    assert max(sizes) - min(sizes) <= 1
    assert cut == [segment(length, parts, index) for index in range(parts)]


@given(st.integers(0, 1 << 22), st.integers(0, 1 << 22), st.integers(1 << 16, 1 << 21))
def test_pieces_cover_a_range_within_their_bound(low, count, most):
    cut = list(pieces(low, low + count, most))
    assert sum(high - start for start, high in cut) == count
    assert all(0 < high - start <= most for start, high in cut)
    assert [start for start, _ in cut] == ([low] + [high for _, high in cut[:-1]])[: len(cut)]
