"""The search's problem: a choice for each operator and stream, what each option costs, and each pair along the chain.

Nothing here knows what an option means; a strategy is the index of one option in each choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Strategy = tuple[int, ...]
"""For each choice, the index of the option taken."""
ROUNDING = 1 + 1e-12
"""A strategy fits where its bytes exceed the limit by rounding alone."""


class Choice(NamedTuple):
    """What has to be chosen once.

    Args:
        name: of the operator or stream.
        options: what there is to choose from.
        per_microbatch_s: seconds a microbatch of each option.
        per_step_s: seconds a step of each, beside its microbatches.
        memory_bytes: bytes of each.
    """

    name: str
    options: Sequence[Any]
    per_microbatch_s: Numbers
    per_step_s: Numbers
    memory_bytes: Numbers


@dataclass(frozen=True)
class Problem:
    """Choices along a chain.

    Args:
        choices: each is made once.
        order: that in which the chain meets them. Only the first may come again.
        moves: seconds a microbatch between neighbours in this order: [option of one, option of the next].
        microbatches: of a step.
        fixed: bytes held whatever is chosen.
    """

    choices: Sequence[Choice]
    order: Sequence[int]
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
        seconds = [self.microbatches * choice.per_microbatch_s + choice.per_step_s for choice in self.choices]
        for choice, next_choice, moved in self._steps():
            if choice == next_choice:
                seconds[choice] = seconds[choice] + moved.diagonal()
        return seconds

    @cached_property
    def pairs(self) -> dict[tuple[int, int], Numbers]:
        """Seconds of a step of two choices together: [option of one, option of the other], the lower choice first."""
        seconds: dict[tuple[int, int], Numbers] = {}
        for first, second, moved in self._steps():
            if first != second:
                key, matrix = ((first, second), moved) if first < second else ((second, first), moved.T)
                seconds[key] = seconds[key] + matrix if key in seconds else matrix
        return seconds

    def _steps(self) -> Sequence[tuple[int, int, Numbers]]:
        ends = zip(self.order, self.order[1:], self.moves, strict=False)
        return [(choice, next_choice, self.microbatches * moved) for choice, next_choice, moved in ends]

    def seconds(self, strategy: Strategy) -> float:
        """Seconds of a step."""
        single_seconds = sum(float(self.single[choice][option]) for choice, option in enumerate(strategy))
        return single_seconds + sum(float(matrix[strategy[i], strategy[j]]) for (i, j), matrix in self.pairs.items())

    def memory_bytes(self, strategy: Strategy) -> float:
        return self.fixed + sum(float(self.choices[i].memory_bytes[option]) for i, option in enumerate(strategy))

    def costs_of_choice(self, strategy: Strategy, choice: int) -> Numbers:
        """Seconds of a step for every option of one choice, the others as they are."""
        other_seconds = self.seconds(strategy) - self._part(strategy, choice)[strategy[choice]]
        return self._part(strategy, choice) + other_seconds

    def _part(self, strategy: Strategy, choice: int) -> Numbers:
        part = self.single[choice]
        for (i, j), matrix in self.pairs.items():
            if choice == i:
                part = part + matrix[:, strategy[j]]
            elif choice == j:
                part = part + matrix[strategy[i]]
        return part

    @cached_property
    def min_memory(self) -> Strategy:
        """The strategy that holds least."""
        return tuple(int(np.argmin(choice.memory_bytes)) for choice in self.choices)


class SearchOutcome(NamedTuple):
    """The result of a search.

    Args:
        strategy: the best that it saw; None: it saw none that fits.
        seconds: of a step; infinite where none fits.
        evaluated: strategies and parts of strategies that it priced.
    """

    strategy: Strategy | None
    seconds: float
    evaluated: int
