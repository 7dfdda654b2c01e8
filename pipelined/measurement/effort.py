"""How much measuring is worth: much where a plan is asked for, little where a run is about to begin anyway.

The rule: sizes and counts only; what is done with them is known where things are timed.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """What is timed, and how often.

    Args:
        warm: rounds of a stage that are not timed.
        fewest, most: rounds of a stage that are.
        spent_s: seconds that the rounds of one stage at one size may take, if the fewest take no more.
        neighbours: whether the first and the last layer are timed with a neighbour, too.
        inner: layers of the inner stages that are timed.
        whole: models of so many layers are timed whole, too.
        hops, sums: bytes that are sent and summed.
        repeats: how often each is.
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
        """Rounds of a stage at one size that are made at least, the one by which their number is found with them."""
        return 1 + self.warm + self.fewest


THOROUGH = Effort()
"""Some ten seconds for a small model."""
BRIEF = Effort(
    warm=0, fewest=2, most=4, spent_s=0.1, neighbours=False, inner=(1, 2), whole=0,
    hops=(1 << 12, 1 << 19), sums=(1 << 12, 1 << 21), repeats=3,
)  # fmt: skip
"""A second or two for a small model: enough to tell arrangements apart that differ by a tenth or more."""
