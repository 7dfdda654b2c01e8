"""A measured and an expected step on one page: both timelines over one axis, and below them their differences.

In the third part a box is a pass, and a low box is the wait of its rank before it; red is longer than expected, blue is
shorter.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from pipelined.traces.drawing.comparison import Pass
from pipelined.traces.drawing.figure import WIDTH, add_legend, box, draw_on, dress
from pipelined.traces.drawing.scene import Scene

SHORTER_TO_LONGER = LinearSegmentedColormap.from_list("difference", ["#2f6fb0", "#f4f4f2", "#c2342c"])
HEAD = 0.75  # inches beside the rows of a part, for its title and axis
WAIT = (0.62, 0.38)  # top and height of a wait, as shares of a row; a pass takes the whole row


def draw_comparison(measured: Scene, expected: Scene, passes: Sequence[Pass]) -> Figure:
    """Draw both, aligned; the pictures must have the same rows and end of their axes."""
    rows = measured.row_inches * len(measured.rows)
    figure = Figure((WIDTH, 3 * (rows + HEAD) + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    expected_axes, measured_axes, difference_axes = figure.subplots(3, 1, sharex=True)
    draw_on(expected_axes, expected)
    draw_on(measured_axes, measured)
    _draw_differences(figure, difference_axes, measured, passes)
    for axes in (expected_axes, measured_axes):
        axes.set_xlabel("")
        axes.tick_params(labelbottom=True)
    add_legend(figure, measured)
    return figure


def _draw_differences(figure: Figure, axes: Axes, picture: Scene, passes: Sequence[Pass]) -> None:
    largest = max((abs(seconds) for pass_ in passes for seconds in (pass_.took, pass_.waited)), default=0.0)
    scale = largest * picture.per_second or 1.0
    colours = ScalarMappable(Normalize(-scale, scale), SHORTER_TO_LONGER)
    shapes, values = zip(*_shapes(picture, passes), strict=True)
    fill = colours.to_rgba(np.array(values))
    axes.add_collection(PolyCollection(shapes, facecolor=fill, edgecolor="#d4d4d8", linewidth=0.4))
    dress(axes, picture, "differences: boxes are passes, low boxes are the waits before them")
    bar = figure.colorbar(colours, ax=axes, location="right", fraction=0.012, pad=0.005)
    bar.ax.tick_params(labelsize=7)
    bar.set_label("longer (ms)", size=7)


def _shapes(picture: Scene, passes: Sequence[Pass]) -> Iterator[tuple[list[tuple[float, float]], float]]:
    """Every box with its value, in units of the axis."""
    unit = picture.per_second
    for pass_ in passes:
        row = pass_.measured.rank
        start = pass_.measured.start * unit
        end = pass_.measured.end * unit
        yield box(start, end, row + 0.08, row + 0.92), pass_.took * unit
        if pass_.measured_idle > 0:
            yield box(start - pass_.measured_idle * unit, start, row + WAIT[0], row + 0.92), pass_.waited * unit
