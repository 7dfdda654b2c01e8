"""Prices lie between what was measured, and `auto` runs what they say is cheapest."""

import asyncio

import numpy as np
import pytest

from collectives import Group, Prices, all_reduce, measure
from collectives.all_reduce import known
from transports.local import world

PRICES = Prices({"ring": ((100, 1.0), (200, 2.0), (400, 3.0)), "rabenseifner": ((100, 0.5), (200, 2.5), (400, 6.0))})


@pytest.mark.parametrize(("nbytes", "seconds"), [(0, 1.0), (100, 1.0), (150, 1.5), (200, 2.0), (300, 2.5), (800, 5.0)])
def test_a_price_lies_on_the_line_between_two_points(nbytes, seconds):
    assert PRICES.price("ring", nbytes) == pytest.approx(seconds)


@pytest.mark.parametrize(("nbytes", "name"), [(50, "rabenseifner"), (160, "ring"), (1000, "ring")])
def test_the_cheapest_changes_with_the_bytes(nbytes, name):
    assert PRICES.cheapest(nbytes) == name


def test_auto_runs_what_was_found_cheapest():
    ends, arrays = world(5), [np.ones(40) for _ in range(5)]

    async def main():
        groups = [Group(end, range(5), 0) for end in ends]
        for group in groups:
            group.prices = Prices({"multi_ring": ((1, 1.0), (2, 1.0)), "ring": ((1, 2.0), (2, 2.0))})
        await asyncio.gather(*map(all_reduce, groups, arrays))

    asyncio.run(main())
    assert [end.traffic.bytes_to for end in ends] == [known("multi_ring").bytes_to(5, r, 320, 8) for r in range(5)]


def test_all_ranks_measure_the_same_prices_of_what_they_can_run():
    async def main():
        groups = [Group(end, range(4), 0) for end in world(4, (0, 0, 2, 2), lends=False)]
        return await asyncio.gather(*(measure(group, (1 << 8, 1 << 12), 2) for group in groups))

    found = asyncio.run(main())
    assert all(prices == found[0] for prices in found)
    assert set(found[0].points) == {"hierarchical", "multi_ring", "rabenseifner", "recursive_doubling", "ring"}
    assert all(seconds > 0 for line in found[0].points.values() for _, seconds in line)
