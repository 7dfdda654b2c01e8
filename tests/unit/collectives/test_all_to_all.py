"""Everybody gets what everybody has for them, and lists that do not fit are refused."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import Group, all_to_all
from transports.local import world


@settings(max_examples=60, deadline=None)
@given(data=st.data(), size=st.integers(1, 7))
def test_everybody_gets_what_everybody_has_for_them(data, size):
    row = st.lists(st.integers(0, 5), min_size=size, max_size=size)
    lengths = data.draw(st.lists(row, min_size=size, max_size=size))
    outgoing = [[np.full(lengths[i][j], 10 * i + j, "int32") for j in range(size)] for i in range(size)]
    incoming = [[np.empty(lengths[i][j], "int32") for i in range(size)] for j in range(size)]
    ends = world(size)

    async def main():
        groups = [Group(end, range(size), 0) for end in ends]
        await asyncio.gather(*(all_to_all(group, outgoing[group.rank], incoming[group.rank]) for group in groups))

    asyncio.run(asyncio.wait_for(main(), 30))
    for j in range(size):
        assert all((array == 10 * i + j).all() for i, array in enumerate(incoming[j]))
    sent = [4 * (sum(row) - row[rank]) for rank, row in enumerate(lengths)]
    assert [end.traffic.bytes_sent for end in ends] == sent


@pytest.mark.parametrize(
    ("outgoing", "incoming", "says"),
    [([1], [1, 1], "outgoing: 1, incoming: 2, ranks: 2"), ([1, 1], [2, 1], r"for itself.*outgoing: 8, incoming: 16")],
)
def test_what_does_not_fit_is_refused(outgoing, incoming, says):
    with pytest.raises(ValueError, match=says):
        group = Group(world(2)[0], (0, 1), 0)
        asyncio.run(all_to_all(group, [np.ones(n) for n in outgoing], [np.ones(n) for n in incoming]))
