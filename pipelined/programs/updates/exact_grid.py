"""The grid of exact sums: numbers on it are added without rounding, so in any order. No torch.

A float64 holds every whole number up to 2^53. So multiples of one power of two, the *spacing* of the grid, are added
exactly while their sum is below 2^53 spacings. Each summand, the gradient of one microbatch by one use of a parameter,
is rounded once to its parameter's grid; the sum of all of them is then the same in every order and every arrangement.

The spacing follows from the largest summand of the step before, by values alone. Summands may grow by 2^HEADROOM from
one step to the next. If one grows more, all ranks compute the step again on the grid that its own summands give.

Source: the idea of Demmel and Nguyen, Parallel Reproducible Summation (2015), with the grid of an earlier step in place
of a pass that finds it.
"""

import math
from dataclasses import dataclass

from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.schedules import SCALE

BITS = 51
"""A sum has at most 2^51 spacings, so that rounding a summand by one addition and one subtraction is exact as well."""
HEADROOM = 4
"""The powers of two by which summands may grow from one step to the next."""
MIN_EXPONENT = -900
"""The least exponent of a spacing; 2^-900 is far below the smallest number of float32."""


@dataclass(frozen=True)
class Grid:
    """The grid of one parameter.

    Args:
        exponent: the spacing is 2^exponent.
    """

    exponent: int

    @classmethod
    def for_sums(cls, largest: float, summands: int) -> "Grid":
        """The grid for sums of `summands` numbers with magnitudes of at most `largest` times 2^HEADROOM."""
        return cls(max(MIN_EXPONENT, _bits(largest) + HEADROOM + _bits(summands) - BITS))

    def holds(self, largest: float, summands: int) -> bool:
        """Whether every sum of `summands` numbers of at most this magnitude is exact."""
        return not largest or _bits(largest) + _bits(summands) <= self.exponent + BITS

    @classmethod
    def with_spacing(cls, spacing: float) -> "Grid":
        """The grid of this spacing, a power of two."""
        return cls(math.frexp(spacing)[1] - 1)

    @property
    def spacing(self) -> float:
        """The distance of two neighbouring points."""
        return math.ldexp(1.0, self.exponent)

    @property
    def rounding(self) -> float:
        """The number C for which (x + C) - C is x rounded to the grid, to even where two multiples are as near."""
        return 1.5 * 2.0 ** (BITS + 1 + self.exponent)


def _bits(number: float) -> int:
    """The least e with number < 2^e."""
    return math.frexp(number)[1]


def require_exact(plan: Plan, compress: str) -> None:
    """Refuse what makes summands or updates depend on the arrangement.

    Raises:
        UsageError: a codec between stages, a schedule without a flush, microbatches that are doubled or halved, several
            ranks a worker.
    """
    if plan.tensor > 1:
        fact = f"members of a team add up pieces of a product, which rounds (tensor: {plan.tensor})"
        raise UsageError(f"{fact}; exact sums need `tensor=1`")
    if compress != "none":
        fact = f"a codec between stages rounds what passes them, so sums depend on the cut (codec: {compress})"
        raise UsageError(f"{fact}; exact sums need `compress=none`")
    if not plan.flushes:
        fact = f"{plan.schedule} updates a stage between the microbatches of a step, so updates depend on the depth"
        raise UsageError(f"{fact}; exact sums need a schedule with a flush, such as `schedule=one_f_one_b`")
    if SCALE.of(plan) != "direct":
        fact = f"gradients are rounded otherwise in microbatches of another size (scale: {SCALE.of(plan)})"
        raise UsageError(f"{fact}; exact sums need `scale=direct`")
