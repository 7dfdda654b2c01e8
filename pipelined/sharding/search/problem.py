"""The search's problem: a choice for each operator and stream, what each option costs, and each pair along the chain.

Nothing here knows what an option means; a strategy is the place of one option in each choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Strategy = tuple[int, ...]
"""For each choice, the place of the option taken."""
ROUNDING = 1 + 1e-12
"""A strategy fits where its bytes exceed the limit by rounding alone."""


class Choice(NamedTuple):
    """What has to be chosen once.

    Args:
        name: of the operator or stream.
        options: what there is to choose from.
        micro: seconds a microbatch of each option.
        step: seconds a step of each, beside its microbatches.
        held: bytes of each.
    """

    name: str
    options: Sequence[Any]
    micro: Numbers
    step: Numbers
    held: Numbers


@dataclass(frozen=True)
class Problem:
    """Choices along a chain.

    Args:
        choices: each is made once.
        walk: the order in which the chain meets them. Only the first of the walk may come again.
        moves: seconds a microbatch between neighbours of the walk: [option of one, option of the next].
        microbatches: of a step.
        fixed: bytes held whatever is chosen.
    """

    choices: Sequence[Choice]
    walk: Sequence[int]
    moves: Sequence[Numbers]
    microbatches: int = 1
    fixed: float = 0.0

    @cached_property
    def space(self) -> int:
        """The number of strategies."""
        return prod(len(choice.options) for choice in self.choices)

    @cached_property
    def single(self) -> list[Numbers]:
        """Seconds of a step of each option of each choice, a move from a choice to itself included."""
        found = [self.microbatches * choice.micro + choice.step for choice in self.choices]
        for one, other, moved in self._steps():
            if one == other:
                found[one] = found[one] + moved.diagonal()
        return found

    @cached_property
    def pairs(self) -> dict[tuple[int, int], Numbers]:
        """Seconds of a step of two choices together: [option of one, option of the other], the lower choice first."""
        found: dict[tuple[int, int], Numbers] = {}
        for one, other, moved in self._steps():
            if one != other:
                key, matrix = ((one, other), moved) if one < other else ((other, one), moved.T)
                found[key] = found[key] + matrix if key in found else matrix
        return found

    def _steps(self) -> Sequence[tuple[int, int, Numbers]]:
        ends = zip(self.walk, self.walk[1:], self.moves, strict=False)
        return [(one, other, self.microbatches * moved) for one, other, moved in ends]

    def seconds(self, strategy: Strategy) -> float:
        """Seconds of a step."""
        alone = sum(float(self.single[choice][option]) for choice, option in enumerate(strategy))
        return alone + sum(float(matrix[strategy[i], strategy[j]]) for (i, j), matrix in self.pairs.items())

    def held(self, strategy: Strategy) -> float:
        """Bytes held."""
        return self.fixed + sum(float(self.choices[i].held[option]) for i, option in enumerate(strategy))

    def line(self, strategy: Strategy, choice: int) -> Numbers:
        """Seconds of a step for every option of one choice, the others as they are."""
        others = self.seconds(strategy) - self._part(strategy, choice)[strategy[choice]]
        return self._part(strategy, choice) + others

    def _part(self, strategy: Strategy, choice: int) -> Numbers:
        part = self.single[choice]
        for (i, j), matrix in self.pairs.items():
            if choice == i:
                part = part + matrix[:, strategy[j]]
            elif choice == j:
                part = part + matrix[strategy[i]]
        return part

    @cached_property
    def leanest(self) -> Strategy:
        """The strategy that holds least."""
        return tuple(int(np.argmin(choice.held)) for choice in self.choices)


class Found(NamedTuple):
    """What a search came to.

    Args:
        strategy: the best that it saw; None: it saw none that fits.
        seconds: of a step; infinite where none fits.
        evaluated: strategies and parts of strategies that it priced.
    """

    strategy: Strategy | None
    seconds: float
    evaluated: int


NOTHING = Found(None, inf, 0)
