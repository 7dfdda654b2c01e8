"""The few numbers of a step that all ranks must agree on, summed in one small all-reduce of float64.

Each entry is written by exactly one rank and is zero on the others, or holds whole numbers, so the sum is exact and its
order cannot matter: every rank then derives the same norm, loss and decision to stop, to the last bit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

BUSY, STOPS, RANKS = -3, -2, -1
"""The last numbers of the vector: microseconds that ranks computed, ranks that were asked to stop, ranks."""
MICROSECONDS = 1e6


@dataclass(frozen=True)
class StepTotals:
    """Where each number stands in the vector.

    Args:
        names: every parameter of the model, in an order all ranks share.
        microbatches: how many the step has over all groups.
    """

    names: Sequence[str]
    microbatches: int

    def __len__(self) -> int:
        return len(self.names) + self.microbatches + 3

    def entry(self, squares: Mapping[str, float], losses: Mapping[int, float], busy: float, stop: bool) -> np.ndarray:
        """One rank's contribution.

        Args:
            squares: squared gradient norm of each parameter this rank owns.
            losses: mean loss of each global microbatch whose last stage ran here.
            busy: seconds this rank computed; summed in whole microseconds.
            stop: whether this rank was asked to stop.
        """
        vector = np.zeros(len(self))
        place = {name: i for i, name in enumerate(self.names)}
        for name, square in squares.items():
            vector[place[name]] = square
        for microbatch, loss in losses.items():
            vector[len(self.names) + microbatch] = loss
        vector[BUSY], vector[STOPS], vector[RANKS] = round(busy * MICROSECONDS), stop, 1
        return vector

    def norm(self, total: np.ndarray) -> float:
        """The global gradient norm, summed in the order of the names."""
        return float(np.sqrt(_in_order(total[: len(self.names)])))

    def loss(self, total: np.ndarray) -> float:
        """The mean loss of the step's microbatches, summed in their order."""
        start = len(self.names)
        return _in_order(total[start : start + self.microbatches]) / self.microbatches

    def busy(self, total: np.ndarray) -> float:
        """Mean seconds a rank computed."""
        return float(total[BUSY] / MICROSECONDS / total[RANKS])

    def stop(self, total: np.ndarray) -> bool:
        """Whether any rank was asked to stop."""
        return bool(total[STOPS])


def _in_order(numbers: Iterable[float]) -> float:
    """A left-to-right sum (numpy's pairwise one would depend on the length)."""
    total = 0.0
    for number in numbers:
        total += float(number)
    return total
