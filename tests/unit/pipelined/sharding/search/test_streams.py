"""What moves between two operators, against counting elements rank by rank."""

from itertools import product

import pytest

from pipelined.sharding.factors import Factors
from pipelined.sharding.search.matmul import factorizations
from pipelined.sharding.search.streams import (
    autoddl_rule,
    cuts,
    exchange_entering,
    exchange_leaving,
    exchange_of_cuts,
    overlap,
)


def counted(before, after):
    """Share sent and ranks of the exchange, from the cells of a grid as fine as both cuts, for the best placement."""
    from math import gcd

    x, y = before // gcd(before, after), after // gcd(before, after)
    had = {
        (i, j): {(r, c) for r, c in product(range(x * y), repeat=2) if r // y == i and c // x == j}
        for i, j in product(range(x), range(y))
    }
    wants = {
        (i, j): {(r, c) for r, c in product(range(x * y), repeat=2) if r // x == j and c // y == i}
        for i, j in product(range(x), range(y))
    }
    shares = [len(had[rank] - wants[rank]) / len(had[rank]) for rank in had]
    partners = [sum(1 for other in wants if other != rank and had[rank] & wants[other]) for rank in had]
    return max(shares), max(partners) + 1


@pytest.mark.parametrize(("before", "after"), list(product([1, 2, 3, 4, 6, 12], repeat=2)))
def test_an_exchange_is_counted_element_by_element(before, after):
    share, partners = overlap(before, after)
    assert (pytest.approx(share), partners) == counted(before, after)


@pytest.mark.parametrize(("before", "after", "c"), [(8, 2, 4), (2, 8, 4), (3, 12, 4), (5, 5, 1)])
def test_where_one_cut_divides_the_other_all_but_one_part_is_sent(before, after, c):
    assert overlap(before, after) == (pytest.approx((c - 1) / c), c)


def free(exchange):
    return exchange.elements(1.0) == 0


@pytest.mark.parametrize("split", factorizations(16), ids=str)
def test_a_stream_enters_and_leaves_free_where_its_cut_lies_between(split):
    p0, p1, p2 = split
    for (a,) in cuts((16,)):
        assert free(exchange_entering((a,), (split,))) == (a % p0 == 0 and (p0 * p1) % a == 0)
        assert free(exchange_leaving((split,), (a,), False)) == (a % p0 == 0 and (p0 * p2) % a == 0)
        assert free(exchange_leaving((split,), (a,), True)) == (a == p0)


@pytest.mark.parametrize(("core", "number"), [(False, 1), (True, 0)])
def test_the_papers_edge_is_free_by_columns_or_by_tokens(core, number):
    by_columns = autoddl_rule((Factors(4, 4, 1),), (Factors(4, 1, 4),), core)
    by_tokens = autoddl_rule((Factors(8, 1, 2),), (Factors(4, 4, 1),), core)
    assert free(by_columns) and free(by_tokens) == bool(number)
    assert autoddl_rule((Factors(8, 2, 1),), (Factors(2, 2, 4),), core).elements(16.0) == pytest.approx(12.0)


def test_levels_multiply():
    exchange = exchange_of_cuts((4, 2), (1, 2))
    assert exchange.partners == (4, 1) and exchange.elements(8.0) == pytest.approx(6.0)
    assert exchange_of_cuts((2, 1), (1, 4)).elements(8.0) == pytest.approx((1 - 1 / 8) * 8)
