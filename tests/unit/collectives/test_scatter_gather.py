"""reduce_scatter and all_gather, the two halves of a ring all-reduce."""

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Group, all_gather, all_reduce, reduce_scatter, segment, segments
from transports.local import world


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
