"""A stage whose gradients are summed exactly: after each backward they go to the exact sums of the rank."""

from dataclasses import dataclass
from typing import Any

from pipelined.errors import UsageError
from pipelined.training.stage import Alive, Stage
from pipelined.training.stream import Parcel, Tree, tensors_of
from pipelined.training.sums.exact_sums import ExactSums


@dataclass(kw_only=True)
class ExactStage(Stage):
    """See `Stage`.

    Args:
        exact: the exact sums of the rank.
    Raises:
        UsageError: a norm of the stage has running statistics, which are averaged in floats.
    """

    exact: ExactSums

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.statistics.any:
            fact = f"a norm of stage {self.index} has running statistics, which are averaged in floats"
            raise UsageError(f"{fact}; exact sums need a norm without them, such as LayerNorm or GroupNorm")

    def backward(self, which: Alive, *arguments: Any, **named: Any) -> Parcel | None:
        back = super().backward(which, *arguments, **named)
        self.exact.collect(self.index)
        return back

    def backward_input(self, which: Alive, *arguments: Any, **named: Any) -> Parcel | None:
        with self.exact.without_weights():
            return super().backward_input(which, *arguments, **named)

    def backward_weight(self, which: Alive) -> None:
        super().backward_weight(which)
        self.exact.collect(self.index)

    def _revived(self, *arguments: Any) -> tuple[Tree, Tree]:
        x, output = super()._revived(*arguments)
        self.exact.separate(tensors_of(output))
        return x, output
