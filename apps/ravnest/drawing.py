"""A picture of a plan as Figure 4 of the paper: a row a cluster, a box a node's layers, a colour a ring.

The x axis is the model, element by element, so a ring stands in one column of all clusters. Only this file imports
matplotlib.

Source: Ravnest, Figure 4.
"""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pipelined.errors import writing
from pipelined.ravnest.planning.plan import PlannedStage, RavnestPlan
from pipelined.ravnest.planning.ring_layout import number_bytes

WIDTH, ROW, HEIGHT = 12.0, 1.2, 0.62  # inches of the page and of a row; the part of a row that a box takes
COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb")
MIN_SHARE = 0.04  # the part of the model below which a box has no text


def save(plan: RavnestPlan, path: Path) -> None:
    """Draw a plan to a PNG file.

    Raises:
        UsageError: the file cannot be written.
    """
    figure = draw(plan)
    with writing(path):
        figure.savefig(path, format="png", dpi=150)


def draw(plan: RavnestPlan) -> Figure:
    """Draw it: the rings in the background, the stages in front of them, and the bytes of each ring below."""
    rows = len(plan.clusters)
    total = plan.rings[-1].high
    figure = Figure((WIDTH, 1.2 + ROW * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _draw_rings(axes, plan, rows)
    for row, boxes in enumerate(_boxes(plan)):
        for low, high, text in boxes:
            axes.add_patch(Rectangle((low, row - HEIGHT / 2), high - low, HEIGHT, fc="white", ec="black", alpha=0.85))
            if high - low >= MIN_SHARE * total:
                axes.text((low + high) / 2, row, text, ha="center", va="center", fontsize=8)
    axes.set(xlim=(0, total), ylim=(rows - 0.4, -0.6), xlabel="parameters of the model")
    axes.set_yticks(range(rows), [f"cluster {number}" for number in range(rows)])
    axes.set_title(f"clusters: {rows}, by {plan.objective}; rings: {len(plan.rings)}")
    return figure


def _draw_rings(axes: Axes, plan: RavnestPlan, rows: int) -> None:
    for number, ring in enumerate(plan.rings):
        axes.axvspan(ring.low, ring.high, color=COLOURS[number % len(COLOURS)], alpha=0.45, lw=0)
        if ring.high - ring.low >= MIN_SHARE * plan.rings[-1].high:
            size = f"ring {number}\n{(ring.high - ring.low) * number_bytes(plan.layers) / 2**20:,.1f} MiB"
            axes.text((ring.low + ring.high) / 2, rows - 0.5, size, ha="center", va="center", fontsize=6)


def _boxes(plan: RavnestPlan) -> Iterator[list[tuple[int, int, str]]]:
    """The (first element, end, text) of each stage, cluster by cluster."""
    starts = [0, *accumulate(layer.parameters for layer in plan.layers)]
    for cluster in plan.clusters:
        yield [(starts[stage.first], starts[stage.end], _text(stage)) for stage in cluster.stages]


def _text(stage: PlannedStage) -> str:
    lines = [stage.node.name, f"layers {stage.first}-{stage.end - 1}", f"{stage.alive} alive"]
    return "\n".join([*lines, f"backup {stage.backup.name}"] if stage.backup else lines)
