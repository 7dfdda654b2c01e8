"""The transport's own all-reduce is used where there is one, and its lack is named."""

import asyncio

import numpy as np
import pytest

from collectives import Group, all_reduce
from transports.local import LocalTransport, world


class Doubling:
    """A transport's own collective over two ranks that hold the same."""

    async def all_reduce(self, block, op):
        assert op in ("sum", "max")
        if block.dtype == "float16":
            raise ValueError("cannot reduce float16")
        if op == "sum":
            block.numpy()[:] *= 2


class WithNative(LocalTransport):
    asked = 0

    async def open_native(self, ranks, channel):
        self.asked += 1
        return Doubling()


@pytest.mark.parametrize(("op", "expected"), [("sum", 6), ("mean", 3), ("max", 3)])
async def test_the_transports_own_collective_is_used_and_looked_up_once(op, expected):
    ends, arrays = [], [np.full((2, 2), 3.0) for _ in range(2)]
    ends.extend(WithNative(rank, 2, ends) for rank in range(2))

    async def rank(end, array):
        group = Group(end, (0, 1), 0)
        await all_reduce(group, array, op, "native")
        await all_reduce(group, np.ones(3), op, "native")

    await asyncio.gather(*map(rank, ends, arrays))
    assert all((array == expected).all() for array in arrays) and [end.asked for end in ends] == [1, 1]


async def test_a_dtype_that_it_cannot_reduce_leaves_the_group_usable():
    ends = []
    ends.extend(WithNative(rank, 2, ends) for rank in range(2))

    async def rank(end):
        group, array = Group(end, (0, 1), 0), np.ones(3)
        with pytest.raises(ValueError, match="cannot reduce float16"):
            await all_reduce(group, np.ones(3, "float16"), "sum", "native")
        await all_reduce(group, array, "sum", "native")
        assert (array == 2.0).all()

    await asyncio.gather(*map(rank, ends))


def test_a_transport_without_one_is_named():
    with pytest.raises(ValueError, match=r"no all-reduce of its own \(transport: LocalTransport\)"):
        asyncio.run(all_reduce(Group(world(2)[0], (0, 1), 0), np.ones(3), "sum", "native"))
