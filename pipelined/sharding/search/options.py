"""The options of an operator: how its factors lie over the machine, what its replicas split, what is gathered again.

`paper`: each operator p0·p1·p2, its state whole. `full`: also ZeRO-1, -2 and -3 by operator, and inputs that are kept
or gathered again in the backward; streams between operators are then cut by tokens as they like.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from pipelined.sharding.factors import Factors
from pipelined.sharding.search.chain import Operator
from pipelined.sharding.search.matmul import STATES, Split, splits, whole


class Option(NamedTuple):
    """One way to split an operator.

    Args:
        split: its factors at each level of the machine.
        state: one of `STATES`.
        regather_input: the gathered input is gathered again in the backward.
    """

    split: Split
    state: str = "none"
    regather_input: bool = False


def options_of(
    operator: Operator,
    levels: tuple[int, ...],
    *,
    replicas: int | None = None,
    zero: bool = False,
    regather_input: bool = False,
) -> Iterator[Option]:
    """All ways to split an operator.

    Args:
        levels: ranks; or nodes, and ranks of a node.
        replicas: the largest p0; None: any.
        zero: also split states.
        regather_input: also gather inputs again.
    """
    for split in _splits(levels):
        factors = whole(split)
        if (replicas is None or factors.rows <= replicas) and _fits(operator, factors):
            for state in STATES if zero and factors.rows > 1 else STATES[:1]:
                for regathers in (False, True) if regather_input and factors.columns > 1 else (False,):
                    yield Option(split, state, regathers)


@cache
def _splits(levels: tuple[int, ...]) -> list[Split]:
    return splits(levels)


def _fits(operator: Operator, factors: Factors) -> bool:
    """Whether attention has a sequence and a head for every rank; a convolution an image and channels."""
    if operator.sequences is not None and factors.rows > operator.sequences:
        return False
    if operator.matmul.taps > 1 and factors.contraction > operator.matmul.inputs:
        return False
    return operator.heads is None or factors.columns * factors.contraction <= operator.heads
