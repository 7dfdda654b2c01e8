"""reduce_scatter and all_gather, the two halves of a ring all-reduce, evenly cut and by given lengths."""

import asyncio
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Group, Mismatch, all_gather, all_reduce, reduce_scatter, segment, segments
from tests.unit.collectives.owned import owned
from transports.local import world
from transports.testing import tcp_world


def on_all(ends, call):
    async def main():
        groups = [Group(end, range(len(ends)), 2) for end in ends]
        return await asyncio.gather(*(call(group) for group in groups))

    return asyncio.run(asyncio.wait_for(main(), 30))


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 9), length=st.integers(0, 50), op=st.sampled_from(["sum", "max", "mean"]))
def test_reduce_scatter_keeps_this_ranks_segment(size, length, op):
    arrays = [np.random.default_rng(rank).standard_normal(length) for rank in range(size)]
    exact = getattr(np, op)(np.array(arrays), axis=0)
    kept = on_all(world(size), lambda group: reduce_scatter(group, arrays[group.rank], op))
    for rank, (low, high) in enumerate(segments(length, size)):
        np.testing.assert_allclose(kept[rank], exact[low:high], atol=1e-12)
        assert kept[rank].base is arrays[rank] or high == low


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 9), length=st.integers(0, 50))
def test_all_gather_fills_in_the_others_segments(size, length):
    whole, ends, arrays = np.arange(length, dtype="int16"), world(size), []
    for low, high in segments(length, size):
        arrays.append(np.full(length, -1, "int16"))
        arrays[-1][low:high] = whole[low:high]
    on_all(ends, lambda group: all_gather(group, arrays[group.rank]))
    assert all((array == whole).all() for array in arrays)
    after = [segment(length, size, (rank + 1) % size) for rank in range(size)]
    assert [end.traffic.bytes_sent for end in ends] == [2 * (length - high + low) for low, high in after]


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_one_after_the_other_is_the_ring(size):
    one = [torch.randn(5, 70_001, generator=torch.manual_seed(rank)).bfloat16() for rank in range(size)]
    two = [tensor.clone() for tensor in one]

    async def halves(group):
        await reduce_scatter(group, one[group.rank], "mean")
        await all_gather(group, one[group.rank])
        await all_reduce(group, two[group.rank], "mean", "ring")

    on_all(world(size), halves)
    assert all(torch.equal(first, second) for first, second in zip(one, two, strict=True))


CUTS = ([5], [3, 4], [0, 7], [7, 0], [0, 0], [1, 0, 5], [0, 0, 9], [4, 0, 0, 2, 9], [6000, 0, 9000], [0, 0, 9000, 1])
of_every_cut = pytest.mark.parametrize("lengths", CUTS, ids=str)
over_both = pytest.mark.parametrize("scheme", ["local", "tcp"])


async def worlds(scheme, size):
    return await tcp_world(size) if scheme == "tcp" else world(size)


def contributions(lengths):
    """On each rank an array of which only its own segment is filled, and the array of all segments."""
    whole, ends = np.arange(1.0, 1 + sum(lengths)), list(accumulate(lengths))
    arrays = [np.zeros(sum(lengths)) for _ in lengths]
    for array, high, length in zip(arrays, ends, lengths, strict=True):
        array[high - length : high] = whole[high - length : high]
    return arrays, whole


@over_both
@of_every_cut
async def test_given_lengths_are_gathered_and_their_bytes_counted(scheme, lengths):
    ends, (arrays, whole) = await worlds(scheme, len(lengths)), contributions(lengths)
    groups = [Group(end, range(len(ends)), 2, piece=1 << 14) for end in ends]
    for _ in range(2):  # the second call shows whether the first left a message behind
        calls = (all_gather(*pair, lengths) for pair in zip(groups, arrays, strict=True))
        await asyncio.wait_for(asyncio.gather(*calls), 30)
        assert all((array == whole).all() for array in arrays)
    following = [*lengths[1:], lengths[0]]
    expected = [2 * 8 * (sum(lengths) - length) for length in following] if len(lengths) > 1 else [0]
    assert [end.traffic.bytes_sent for end in ends] == expected
    await asyncio.gather(*(end.close() for end in ends))


@over_both
@of_every_cut
async def test_given_lengths_are_reduced_and_their_bytes_counted(scheme, lengths):
    ends, size = await worlds(scheme, len(lengths)), len(lengths)
    arrays = [np.random.default_rng(rank).integers(-9, 9, sum(lengths)) for rank in range(size)]
    exact, groups = sum(arrays), [Group(end, range(size), 2, piece=1 << 14) for end in ends]
    calls = (reduce_scatter(*pair, "sum", lengths) for pair in zip(groups, arrays, strict=True))
    kept = await asyncio.wait_for(asyncio.gather(*calls), 30)
    for part, high, length in zip(kept, accumulate(lengths), lengths, strict=True):
        assert part.tolist() == exact[high - length : high].tolist()
    expected = [8 * (sum(lengths) - length) for length in lengths] if size > 1 else [0]
    assert [end.traffic.bytes_sent for end in ends] == expected
    await asyncio.gather(*(end.close() for end in ends))


@pytest.mark.parametrize("lengths", [(3, 4), (3, 4, 1), (9, -1), ()])
@pytest.mark.parametrize("collective", [all_gather, reduce_scatter])
async def test_lengths_that_do_not_make_up_the_array_are_refused(collective, lengths):
    with pytest.raises(ValueError, match=rf"lengths: \[{', '.join(map(str, lengths))}\], elements: 8, ranks: 2"):
        await collective(Group(world(2)[0], (0, 1), 0), np.ones(8), lengths=lengths)


@over_both
@pytest.mark.parametrize("collective", [all_gather, reduce_scatter])
@pytest.mark.parametrize(("here", "there"), [((7, 0), (0, 7)), ((0, 7), (7, 0)), ((3, 4), (7, 0)), ((3, 4), (4, 3))])
async def test_ranks_that_give_other_lengths_are_told_both(scheme, collective, here, there):
    """Where each rank believes that the other sends it nothing, neither would receive what the other sends."""
    ends = await worlds(scheme, 2)
    calls = [
        asyncio.ensure_future(collective(Group(end, (0, 1), 0), np.ones(7), lengths=lengths))
        for end, lengths in zip(ends, (here, there), strict=True)
    ]
    running = (owned(*pair) for pair in zip(ends, calls, strict=True))
    ended = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 5)
    told = [str(error) for error in ended if isinstance(error, Mismatch)]
    assert told
    assert all(f"cut {a}+{b}" in told[0] for a, b in (here, there))
    await asyncio.gather(*(end.close() for end in ends))
