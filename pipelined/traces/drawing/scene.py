"""The content of a picture of a timeline: boxes, strips and rows. Nothing here needs matplotlib."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pipelined.traces.drawing.colours import Colour
from pipelined.traces.file import Span

PASSES = ("forward", "backward")
WEIGHT_HALF = "backward_weight"
STRIPS: dict[str, Colour] = {
    "receive": (0.80, 0.82, 0.85),
    "send": (0.47, 0.53, 0.62),
    "all_reduce": (0.78, 0.18, 0.22),
    "step": (0.25, 0.25, 0.27),
}
STRIP = 0.075  # the height of a strip, as a share of its row's


@dataclass(frozen=True, repr=False)
class Scene:
    """The timeline of a step: one row a worker, time to the right.

    Args:
        spans: forwards and backwards with stage, microbatch and pipe; strips of any kind in `STRIPS`.
        rows: names of the workers, by rank.
        title, axis: above and below.
        per_second: units of the axis in a second.
        until: seconds at which the axis ends at the earliest, so that pictures can be laid side by side.
    """

    spans: Sequence[Span]
    rows: Sequence[str]
    title: str
    axis: str
    per_second: float = 1.0
    until: float = 0.0

    @cached_property
    def boxes(self) -> list[Span]:
        return [span for span in self.spans if span.category in PASSES]

    @cached_property
    def strips(self) -> list[Span]:
        return [span for span in self.spans if span.category in STRIPS]

    @cached_property
    def depth(self) -> int:
        return 1 + max(span.stage for span in self.boxes)

    @cached_property
    def pipes(self) -> int:
        return 1 + max(span.pipe for span in self.boxes)

    @cached_property
    def end(self) -> float:
        """The end of the axis, in its units."""
        return max(self.until, *(span.end for span in self.spans)) * self.per_second

    @cached_property
    def has_weight_halves(self) -> bool:
        """Whether there is a weight half."""
        return any(span.name == WEIGHT_HALF for span in self.boxes)

    @property
    def row_inches(self) -> float:
        return min(0.42, max(0.16, 12.0 / len(self.rows)))

    @property
    def box_height(self) -> float:
        """The height of a box, as a share of its row's."""
        return 0.86 - 3 * STRIP * bool(self.strips)
