"""The grids of parameters that are summed exactly: how a summand is rounded and added, and which grid follows.

A rank of a pipeline and a peer of a swarm use the same rule; see `programs.updates.exact_grid`.
"""

import math
from collections.abc import Mapping

import torch

from pipelined.programs.updates.exact_grid import BITS, Grid

GRID = "grid"
"""The field of a checkpoint that has the exponent of a parameter's grid."""
CHUNK = 1 << 16
"""Elements that are rounded at a time, so that they stay in the cache."""


class Grids(dict[str, Grid]):
    """The grid of each parameter of which the largest summand is known, by name.

    Args:
        summands: by parameter, the most summands of a step.
    """

    def __init__(self, summands: Mapping[str, int]):
        super().__init__()
        self._summands = summands

    def add(self, name: str, gradient: torch.Tensor, sums: torch.Tensor) -> float:
        """Round a summand to the grid of its parameter, and add it. A summand that does not fit is left out.

        Args:
            sums: float64 and flat, as many elements as the gradient.
        Returns: the largest magnitude in the summand; not finite if any of its elements is not.
        Cost: 2 to 3 ns an element.
        """
        flat = gradient.reshape(-1)
        if not flat.numel():
            return 0.0
        low, high = torch.aminmax(flat)
        largest = max(-float(low), float(high))
        if largest and self.holds(name, largest):
            rounding = self[name].rounding
            for chunk, part in zip(flat.split(CHUNK), sums.split(CHUNK), strict=True):
                part.add_(chunk.to(torch.float64).add_(rounding).sub_(rounding))
        return largest

    def squares(self, name: str, sums: torch.Tensor, elements: int) -> tuple[float, float]:
        """The sum of the squares of some of a parameter's sums, as two numbers that add exactly, in any order.

        The first has the squares rounded to a coarse grid, the second what that left of them, rounded to a fine one.
        Both grids follow from the parameter's own, so every rank that has some of its sums rounds to the same ones.

        Args:
            sums: of this step, flat, after `adopt`.
            elements: of the whole parameter.
        Returns: both numbers; among a million elements, squares below 2^-40 of the largest are lost.
        Cost: 5 to 10 ns an element.
        """
        if name not in self:
            return float(sums.double().square().sum()), 0.0  # no rank has had a gradient: zeros, or not finite
        bound = self[name].exponent + BITS
        room = elements.bit_length() - BITS
        coarse_rounding = Grid(room).rounding  # of squares in units of 4^bound, all at most 1
        fine_rounding = Grid(room + room).rounding  # and what is left of each is at most half a coarse spacing
        coarse_sum, fine_sum = torch.zeros(2, dtype=torch.float64, device=sums.device)  # read once, at the end
        for chunk in sums.split(CHUNK):
            squares = (chunk.to(torch.float64) * math.ldexp(1.0, -bound)).square_()
            rounded = (squares + coarse_rounding).sub_(coarse_rounding)
            coarse_sum = coarse_sum + rounded.sum()
            fine_sum = fine_sum + squares.sub_(rounded).add_(fine_rounding).sub_(fine_rounding).sum()
        return _scale(float(coarse_sum), 2 * bound), _scale(float(fine_sum), 2 * bound)

    def holds(self, name: str, largest: float) -> bool:
        """Whether every sum of a step is exact if its summands have at most this magnitude."""
        if not largest:
            return True
        return name in self and math.isfinite(largest) and self[name].holds(largest, self._summands[name])

    def adopt(self, largest: Mapping[str, float]) -> None:
        """Set the grids for what comes next, by the largest summands of all processes.

        A parameter without a gradient, or with one that is not finite, keeps its grid.
        """
        for name, magnitude in largest.items():
            if name in self._summands and math.isfinite(magnitude) and magnitude:
                self[name] = Grid.for_sums(magnitude, self._summands[name])


def _scale(value: float, exponent: int) -> float:
    """The number times 2^exponent; infinite where that is too large."""
    try:
        return math.ldexp(value, exponent)
    except OverflowError:
        return math.copysign(math.inf, value)
