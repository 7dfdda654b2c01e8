"""Arguments and memory of reduce_scatter and all_gather: lengths, shared arrays, and one after the other."""

import asyncio

import numpy as np
import pytest
import torch

from collectives import Group, all_gather, all_reduce, allocate, reduce_scatter
from tests.conformance.worlds import local_world
from tests.unit.test_every_collective import on_all
from transports.local import world


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_one_after_the_other_is_the_ring(size):
    one = [torch.randn(5, 70_001, generator=torch.manual_seed(rank)).bfloat16() for rank in range(size)]
    two = [tensor.clone() for tensor in one]

    async def halves(group):
        await reduce_scatter(group, one[group.rank], "mean", algorithm="ring")
        await all_gather(group, one[group.rank], algorithm="ring")
        await all_reduce(group, two[group.rank], "mean", "ring")

    on_all(world(size), halves)
    assert all(torch.equal(first, second) for first, second in zip(one, two, strict=True))


@pytest.mark.parametrize("size", [2, 3])
async def test_arrays_in_shared_memory_are_gathered_and_reduced_where_they_lie(size):
    """Two all-reduces between them use the same windows: no one may read what another has overwritten."""
    groups = [Group(end, range(size), 2, window=1 << 16) for end in local_world(size, shared_memory=True)]
    lengths = [100_000 + 7 * rank for rank in range(size)]
    exact = np.arange(sum(lengths)) * (size * (size + 1) // 2)

    async def rank(group):
        array = await allocate(group, sum(lengths), "int64")
        for _ in range(3):
            array[:] = np.arange(sum(lengths)) * (group.rank + 1)
            await reduce_scatter(group, array, "sum", lengths)
            await all_gather(group, array, lengths)
            assert (array == exact).all()
            other = np.arange(30_000) * (group.rank + 1)
            await all_reduce(group, other)
            assert (other == exact[:30_000]).all()

    await asyncio.wait_for(asyncio.gather(*map(rank, groups)), 30)


@pytest.mark.parametrize("lengths", [(3, 4), (3, 4, 1), (9, -1), (3.0, 5.0), ()])
@pytest.mark.parametrize("collective", [all_gather, reduce_scatter])
async def test_lengths_that_do_not_make_up_the_array_are_refused(collective, lengths):
    with pytest.raises(ValueError, match=rf"lengths: \[{', '.join(map(str, lengths))}\], elements: 8, ranks: 2"):
        await collective(Group(world(2)[0], (0, 1), 0), np.ones(8), lengths=lengths)
