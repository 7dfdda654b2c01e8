"""The few numbers of a step that all ranks must agree on, summed in one small all-reduce of float64.

Each entry is written by exactly one rank and is zero on the others, so the sum is exact and its order cannot matter:
every rank then derives the same norm, the same loss and the same decision to stop, to the last bit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ledger:
    """Where each number stands in the vector.

    Args:
        names: every parameter of the model, in an order all ranks share.
        microbatches: how many the step has over all groups.
        world_size: ranks.
    """

    names: Sequence[str]
    microbatches: int
    world_size: int

    def __len__(self) -> int:
        return len(self.names) + self.microbatches + 2 * self.world_size

    def entry(
        self, rank: int, squares: Mapping[str, float], losses: Mapping[int, float], busy: float, stop: bool
    ) -> np.ndarray:
        """One rank's contribution.

        Args:
            squares: squared gradient norm of each parameter this rank owns.
            losses: mean loss of each global microbatch whose last stage ran here.
            busy: seconds this rank computed.
            stop: whether this rank was asked to stop.
        """
        vector = np.zeros(len(self))
        place = {name: i for i, name in enumerate(self.names)}
        for name, square in squares.items():
            vector[place[name]] = square
        for microbatch, loss in losses.items():
            vector[len(self.names) + microbatch] = loss
        vector[self._ranks(0)][rank] = busy
        vector[self._ranks(1)][rank] = float(stop)
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
        return float(total[self._ranks(0)].mean())

    def stop(self, total: np.ndarray) -> bool:
        """Whether any rank was asked to stop."""
        return bool(total[self._ranks(1)].any())

    def _ranks(self, which: int) -> slice:
        start = len(self.names) + self.microbatches + which * self.world_size
        return slice(start, start + self.world_size)


def _in_order(numbers: Iterable[float]) -> float:
    """A left-to-right sum (numpy's pairwise one would depend on the length)."""
    total = 0.0
    for number in numbers:
        total += float(number)
    return total
