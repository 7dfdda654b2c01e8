"""Every rank ends with the root's array, by a tree of logarithmic depth."""

import asyncio

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Group, Mismatch, broadcast
from collectives.algorithms.parts.binomial_tree import branches
from transports.local import world


def spread(arrays, root):
    ends = world(len(arrays))

    async def main():
        groups = [Group(end, range(len(ends)), 2, piece=1 << 16) for end in ends]
        await asyncio.gather(*(broadcast(*pair, root) for pair in zip(groups, arrays, strict=True)))

    asyncio.run(asyncio.wait_for(main(), 30))
    return ends


@settings(max_examples=60, deadline=None)
@given(size=st.integers(1, 9), length=st.integers(0, 50), data=st.data())
def test_every_rank_ends_with_the_roots_array(size, length, data):
    root = data.draw(st.integers(0, size - 1))
    arrays = [np.full(length, rank, "int32") for rank in range(size)]
    ends = spread(arrays, root)
    assert all((array == root).all() for array in arrays)
    assert sum(end.traffic.bytes_sent for end in ends) == (size - 1) * length * 4


def test_tensors_of_many_pieces():
    tensors = [torch.full((3, 100_001), rank, dtype=torch.bfloat16) for rank in range(5)]
    spread(tensors, 3)
    assert all(bool((tensor == 3).all()) for tensor in tensors)


@given(st.integers(1, 100))
def test_the_tree_reaches_every_node_once_in_log_depth(size):
    depth, nodes = {0: 0}, [0]
    for node in nodes:
        for child in branches(node, size)[1]:
            assert branches(child, size)[0] == node
            depth[child] = depth[node] + 1
            nodes.append(child)
    assert sorted(nodes) == list(range(size))
    assert max(depth.values()) <= (size - 1).bit_length()


def test_a_root_outside_the_group_is_refused():
    with pytest.raises(ValueError, match="root: 2, ranks in the group: 2"):
        asyncio.run(broadcast(Group(world(2)[0], (0, 1), 0), np.ones(1), root=2))


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (np.ones(8), np.ones(0)),
        (np.ones(0), np.ones(8)),
        (np.ones(0, "int64"), np.ones(0, "float32")),
    ],
)
def test_a_receiver_of_another_shape_gets_both_shapes_even_of_no_elements(here, there):
    async def main():
        groups = [Group(end, range(3), 0, patience=60) for end in world(3)]
        calls = [asyncio.create_task(broadcast(*pair)) for pair in zip(groups, (here, here, there), strict=True)]
        with pytest.raises(Mismatch) as raised:
            await asyncio.wait_for(calls[2], 5)
        for call in calls[:2]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return str(raised.value)

    told = asyncio.run(main())
    assert all(f"{len(array)}" in told and str(array.dtype) in told for array in (here, there))
