"""The step totals: the few numbers that all ranks need to be equal, summed in one small all-reduce of float64.

Exactly one rank writes each entry and the others have zero, or the entry is a whole number. So the sum is exact in any
order, and every rank derives the same norm, loss and decision to stop, to the last bit.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

BYTES, COUNT, BUSY, STOPS, RANKS = -5, -4, -3, -2, -1
"""Indices of the last numbers of the vector: bytes sent, the losses' counts, microseconds of computing, ranks with a
stop request, ranks."""
MICROSECONDS = 1e6
STEP_TOTALS = "step totals"
"""The name of their all-reduce in traces and simulations; gradient sums have the names of their stages."""


def part_entry(entry: str, part: int) -> str:
    """The entry of one part of a squared norm: where it has several, each is summed on its own."""
    return f"{entry} +{part}" if part else entry


@dataclass
class StepAccount:
    """This rank's contributions to the numbers of one step on which all ranks agree.

    Args:
        losses: mean (or summed) loss by global microbatch, for microbatches that have their last stage here.
        count: the counts of these losses together; a mean counts 1. Whole numbers are summed exactly in any order.
        squares: squared gradient norms of owned parameters, summed over the step's updates.
        staleness: by stage, summed over the step's microbatches.
    """

    losses: dict[int, float] = field(default_factory=dict)
    count: float = 0.0
    squares: Counter[str] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)


@dataclass(frozen=True)
class StepTotals:
    """The layout of the vector of step totals.

    Args:
        names: every entry of a squared norm, in the same order on all ranks: a parameter, or one of its parts.
        microbatches: the number of microbatches of the step over all groups.
        stages: the number of stages with a staleness; 0 with a flush.
    """

    names: Sequence[str]
    microbatches: int
    stages: int = 0

    def __len__(self) -> int:
        return len(self.names) + self.microbatches + self.stages - BYTES

    def vector(self, account: StepAccount, *, busy: float = 0.0, stop: bool = False, nbytes: int = 0) -> np.ndarray:
        """One rank's contribution.

        Args:
            busy: seconds that this rank computed; summed in whole microseconds.
            stop: whether this rank has received a stop request.
            nbytes: payload that this rank sent in the step.
        """
        vector = np.zeros(len(self))
        index_of = {name: i for i, name in enumerate(self.names)}
        for name, square in account.squares.items():
            vector[index_of[name]] = square
        for microbatch, loss in account.losses.items():
            vector[len(self.names) + microbatch] = loss
        for stage, delay in account.staleness.items():
            vector[len(self.names) + self.microbatches + stage] = delay
        vector[BYTES] = nbytes
        vector[COUNT] = account.count
        vector[BUSY] = round(busy * MICROSECONDS)
        vector[STOPS] = stop
        vector[RANKS] = 1
        return vector

    def norm(self, total: np.ndarray) -> float:
        """The global gradient norm, summed in the order of the names."""
        return float(np.sqrt(_in_order(total[: len(self.names)])))

    def loss(self, total: np.ndarray) -> float:
        """The loss of the step: all losses, summed in microbatch order, over their count; nan if that is 0."""
        start = len(self.names)
        losses = total[start : start + self.microbatches]
        return _in_order(losses) / float(total[COUNT]) if self.is_counted(total) else math.nan

    def is_counted(self, total: np.ndarray) -> bool:
        """Whether the count of any loss is above 0."""
        return bool(total[COUNT])

    def weight(self, total: np.ndarray) -> float:
        """The factor of gradients that were accumulated as if each microbatch counted 1; exactly 1 where each does."""
        return self.microbatches / float(total[COUNT]) if self.is_counted(total) else math.nan

    def staleness(self, total: np.ndarray) -> tuple[float, ...]:
        """For each stage the mean over the step's microbatches; empty with a flush."""
        start = len(self.names) + self.microbatches
        return tuple(float(delay) / self.microbatches for delay in total[start : start + self.stages])

    def busy(self, total: np.ndarray) -> float:
        """Seconds of computing, the mean over ranks."""
        return float(total[BUSY] / MICROSECONDS / total[RANKS])

    def nbytes(self, total: np.ndarray) -> int:
        """Payload bytes that all ranks sent."""
        return round(total[BYTES])

    def stop(self, total: np.ndarray) -> bool:
        """Whether any rank has received a stop request."""
        return bool(total[STOPS])


def _in_order(numbers: np.ndarray) -> float:
    """The sum from left to right (numpy's pairwise sum would depend on the length)."""
    total = 0.0
    for number in numbers.tolist():
        total += number
    return total
