"""What there is to choose along a row: ways to split each part of a layer, and the moves between them, with costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipelined.sharding.factors import Factors
from pipelined.sharding.operators.verbs import Value
from pipelined.sharding.search.problem import Numbers

FactorsByName = Mapping[str, Factors]


class PartCosts(NamedTuple):
    """The costs of a part, those of the moves between two parts first.

    Args:
        forward, backward: seconds of a microbatch's moves.
        kept: bytes from the forward to the backward; 0 where they are not asked for.
        update: seconds of the sums of its gradients, once a step.
        numbers: of its parameters, on the fullest rank.
    """

    forward: float = 0.0
    backward: float = 0.0
    kept: float = 0.0
    update: float = 0.0
    numbers: float = 0.0


FREE = PartCosts()
MOVED = 3
"""The number of these costs, from the first, that moves have."""


@dataclass(frozen=True)
class PartOption:
    """One way to split a part of a layer.

    Args:
        factors: of its operators.
        input, output: the values before and after it, as they lie.
    """

    factors: FactorsByName
    input: Value
    output: Value
    costs: PartCosts = FREE


class RowChoices(NamedTuple):
    """The choices along a row.

    Args:
        options: of each choice; what begins and ends a stage has one.
        moves: between neighbours, [option of one, option of the next, cost].
        ends: the indices of the choices at which stages begin, and the last.
    """

    options: Sequence[Sequence[PartOption]]
    moves: Sequence[Numbers]
    ends: Sequence[int]

    def costs(self) -> list[Numbers]:
        """For each choice, [option, cost]."""
        columns = len(PartCosts._fields)
        return [np.array([option.costs for option in options]).reshape(-1, columns) for options in self.options]

    def restricted(self, fixed: FactorsByName) -> "RowChoices":
        """The same with the options that have these factors where they name them."""
        matches = [
            np.flatnonzero([not _differs(option.factors, fixed) for option in options]) for options in self.options
        ]
        chosen = zip(self.options, matches, strict=True)
        options = [[choice[index] for index in indices.tolist()] for choice, indices in chosen]
        pairs = zip(self.moves, matches, matches[1:], strict=False)
        return RowChoices(options, [matrix[np.ix_(rows, columns)] for matrix, rows, columns in pairs], self.ends)


def factors_of(options: Sequence[Sequence[PartOption]], strategy: Sequence[int]) -> dict[str, Factors]:
    """The factors of every operator, from the index of the chosen option of each choice."""
    chosen = (choice[index] for choice, index in zip(options, strategy, strict=True))
    return {name: factors for option in chosen for name, factors in option.factors.items()}


def _differs(factors: FactorsByName, fixed: FactorsByName) -> bool:
    return any(fixed.get(name, own_factors) != own_factors for name, own_factors in factors.items())
