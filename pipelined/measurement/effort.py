"""The effort of a measurement, as sizes and counts: thorough for a requested plan, brief at the start of a run."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Effort:
    """The sizes to time, and the number of repetitions.

    Args:
        warmup_rounds: rounds of a stage before those that are timed.
        min_rounds, max_rounds: the least and the most timed rounds of a stage.
        max_seconds: seconds for the rounds of one stage at one size; `min_rounds` rounds run even if they take longer.
        neighbours: whether to time the first and the last layer also together with a neighbour.
        inner_layers: the numbers of layers of the timed inner stages.
        whole_layers: the most layers of a model that is also timed as one stage.
        message_sizes: bytes of the timed messages.
        sum_sizes: bytes of the arrays of the timed sums.
        repeats: repetitions of each message and sum.
    """

    warmup_rounds: int = 2
    min_rounds: int = 4
    max_rounds: int = 12
    max_seconds: float = 0.25
    neighbours: bool = True
    inner_layers: tuple[int, ...] = (1, 2, 4)
    whole_layers: int = 10
    message_sizes: tuple[int, ...] = (1 << 10, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
    sum_sizes: tuple[int, ...] = (1 << 12, 1 << 16, 1 << 19, 1 << 21, 1 << 23)
    repeats: int = 9

    @property
    def rounds(self) -> int:
        """The least number of rounds of a stage at one size, including the first one, which determines the number."""
        return 1 + self.warmup_rounds + self.min_rounds

    def few_stages(self) -> "Effort":
        """The same with no more stages than separate the kinds of layers, as each stage takes long to compile."""
        return replace(self, neighbours=False, inner_layers=(1, 2), whole_layers=0)


THOROUGH = Effort()
"""About ten seconds for a small model."""
BRIEF = Effort(
    warmup_rounds=0, min_rounds=2, max_rounds=4, max_seconds=0.1, neighbours=False, inner_layers=(1, 2),
    whole_layers=0, message_sizes=(1 << 12, 1 << 19), sum_sizes=(1 << 12, 1 << 21), repeats=3,
)  # fmt: skip
"""A second or two for a small model: enough to distinguish arrangements that differ by 10 % or more."""
