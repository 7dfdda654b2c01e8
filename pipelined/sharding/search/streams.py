"""The tensor between two operators: split over all ranks by tokens and by columns, and moved where the two disagree.

A stream of p ranks is cut into `a` parts by tokens and p/a by columns. A multiplication p0·p1·p2 takes it as it comes
where p0 | a | p0·p1, since its gather over p1 then joins a/p0 parts by tokens and the rest by columns, and leaves it
anywhere in p0 | a | p0·p2. Where no such cut is common, an all-to-all moves the stream to the nearest.
Source: AutoDDL, section 4.3, which knows `paper`'s two cases alone.
"""

from functools import cache
from itertools import product
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from pipelined.sharding.factors import Factors
from pipelined.sharding.search.matmul import Split, divisors
from pipelined.sharding.search.network import GroupShape, Network

StreamCut = tuple[int, ...]
"""Parts by tokens at each level of the machine."""


class Exchange(NamedTuple):
    """An all-to-all of a stream.

    Args:
        sent: share of its part that the busiest rank sends, at each level as if it were alone.
        partners: ranks among which it is exchanged, at each level, itself counted.
    """

    sent: tuple[float, ...]
    partners: tuple[int, ...]

    def elements(self, part: float) -> float:
        """What the busiest rank sends, if its part has this number of elements."""
        return (1 - prod(1 - share for share in self.sent)) * part

    def seconds(self, network: Network, part: float) -> float:
        return network.exchange(GroupShape(prod(self.partners[:-1]), self.partners[-1]), self.elements(part), part)


@cache
def overlap(before: int, after: int) -> tuple[float, int]:
    """From `before` parts by tokens to `after`: the share that the busiest rank sends, its partners and itself counted.

    Where one divides the other, c = larger / smaller: (c - 1)/c to c - 1 ranks. Else with before = g·x and after = g·y
    the ranks of x·y exchange, and rank (i, j) keeps what lies in the i-th of x and in the j-th of y parts.
    """
    common = gcd(before, after)
    x, y = before // common, after // common
    ranks = x * y
    if 1 in (x, y):
        return (ranks - 1) / ranks, ranks
    ends_of_x, ends_of_y = np.arange(x + 1) * y, np.arange(y + 1) * x
    low = np.maximum.outer(ends_of_x[:-1], ends_of_y[:-1])
    high = np.minimum.outer(ends_of_x[1:], ends_of_y[1:])
    shared = np.maximum(0, high - low) / ranks  # [i, j]: of the tokens, those in part i of x and in part j of y
    overlaps = shared > 0
    # itself also where it keeps nothing
    partners = np.multiply.outer(overlaps.sum(axis=1), overlaps.sum(axis=0)) + ~overlaps
    least = float(shared.min())
    return 1 - least * least * ranks, int(partners.max())


def exchange_of_cuts(before: StreamCut, after: StreamCut) -> Exchange:
    """The exchange from one cut to another; the levels of the machine multiply."""
    return _exchange_of_levels([overlap(*pair) for pair in zip(before, after, strict=True)])


def _exchange_of_levels(levels: list[tuple[float, int]]) -> Exchange:
    sent, partners = zip(*levels, strict=True)
    return Exchange(sent, partners)


@cache
def nearest(cut: int, least: int, most: int) -> int:
    """The cut a with least | a | most to which the fewest elements of a stream are moved."""
    return min((least * d for d in divisors(most // least)), key=lambda a: overlap(cut, a))


def exchange_entering(stream: StreamCut, split: Split) -> Exchange:
    """From a stream to the input of a multiplication."""
    cuts = (nearest(cut, f.rows, f.rows * f.columns) for cut, f in zip(stream, split, strict=True))
    return exchange_of_cuts(stream, tuple(cuts))


def exchange_leaving(split: Split, stream: StreamCut, through_attention: bool) -> Exchange:
    """From the output of a multiplication to a stream.

    Args:
        through_attention: attention comes first, which needs whole sequences: the output leaves it by columns.
    """
    if through_attention:
        return exchange_of_cuts(tuple(f.rows for f in split), stream)
    cuts = (nearest(cut, f.rows, f.rows * f.contraction) for cut, f in zip(stream, split, strict=True))
    return exchange_of_cuts(tuple(cuts), stream)


def autoddl_rule(before: Split, after: Split, through_attention: bool) -> Exchange:
    """From one multiplication to the next by the paper's rule: free by columns or by tokens, else from p0 to p0'."""
    return _exchange_of_levels([_autoddl_rule(f, g, through_attention) for f, g in zip(before, after, strict=True)])


def _autoddl_rule(before: Factors, after: Factors, through_attention: bool) -> tuple[float, int]:
    if before.columns == after.contraction and not through_attention:
        return 0.0, 1
    return overlap(before.rows, after.rows)


def cuts(levels: tuple[int, ...]) -> list[StreamCut]:
    return list(product(*map(divisors, levels)))
