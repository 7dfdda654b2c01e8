"""The effort of a measurement, as sizes and counts: thorough for a requested plan, brief at the start of a run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """The sizes to time, and the number of repetitions.

    Args:
        warm: warm-up rounds of a stage, not timed.
        fewest, most: the least and the most timed rounds of a stage.
        spent_s: seconds for the rounds of one stage at one size; `fewest` rounds run even if they take longer.
        neighbours: whether to time the first and the last layer also together with a neighbour.
        inner: the numbers of layers of the timed inner stages.
        whole: the most layers of a model that is also timed as one stage.
        hops: sizes of the timed messages, in bytes.
        sums: sizes of the timed sums, in bytes.
        repeats: repetitions of each message and sum.
    """

    warm: int = 2
    fewest: int = 4
    most: int = 12
    spent_s: float = 0.25
    neighbours: bool = True
    inner: tuple[int, ...] = (1, 2, 4)
    whole: int = 10
    hops: tuple[int, ...] = (1 << 10, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
    sums: tuple[int, ...] = (1 << 12, 1 << 16, 1 << 19, 1 << 21, 1 << 23)
    repeats: int = 9

    @property
    def rounds(self) -> int:
        """The least number of rounds of a stage at one size, including the first one, which determines the number."""
        return 1 + self.warm + self.fewest


THOROUGH = Effort()
"""About ten seconds for a small model."""
BRIEF = Effort(
    warm=0, fewest=2, most=4, spent_s=0.1, neighbours=False, inner=(1, 2), whole=0,
    hops=(1 << 12, 1 << 19), sums=(1 << 12, 1 << 21), repeats=3,
)  # fmt: skip
"""A second or two for a small model: enough to distinguish arrangements that differ by 10 % or more."""
