"""Pictures of timelines, simulated and measured alike: one row a worker, time to the right, idle left white.

A box is one forward or backward: its hue is the stage, its shade the pipe, its number the microbatch; a backward and
its input half have a dark foot, the weight half a dark cap. Messages, all-reduces and optimizer steps are strips under
the boxes. A picture is drawn from spans alone.
"""

from collections import defaultdict
from collections.abc import Iterator
from io import BytesIO

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from pipelined.traces.drawing.colours import INK, foot_colour, pipe_colour, stage_colour
from pipelined.traces.drawing.scene import STRIP, STRIPS, WEIGHT_HALF, Scene
from pipelined.traces.file import Span

EDGE = 0.13  # of a box's height: a foot or a cap
LANES = {"receive": 0, "send": 1, "all_reduce": 2, "step": 2}
WIDTH = 12.0  # inches
MARGIN = 1.1  # inches beside the rows, for their names
MIN_POINTS, MAX_POINTS = 3.5, 9.0  # points; a smaller number is left out
MAX_STAGES, MAX_ENTRIES = 8, 16  # in the legend, and in one line of it


def draw(picture: Scene) -> Figure:
    """Draw it. Cost: about a millisecond a number shown."""
    figure = Figure((WIDTH, 1.35 + picture.row_inches * len(picture.rows)), layout="constrained")
    FigureCanvasAgg(figure)
    draw_on(figure.add_subplot(), picture)
    add_legend(figure, picture)
    return figure


def draw_on(axes: Axes, picture: Scene) -> None:
    """Draw it without a legend, into a part of a page."""
    _draw_boxes(axes, picture)
    _draw_numbers(axes, picture)
    _draw_strips(axes, picture)
    dress(axes, picture, picture.title)


def add_legend(figure: Figure, picture: Scene) -> None:
    """Say below the page what its colours and shapes mean."""
    handles = list(_legend(picture))
    lines = -(-len(handles) // MAX_ENTRIES)
    style = {"fontsize": 8, "handlelength": 1.1, "handleheight": 1.1, "columnspacing": 1.2, "handletextpad": 0.45}
    figure.legend(handles=handles, loc="outside lower center", ncols=-(-len(handles) // lines), frameon=False, **style)


def figure_bytes(figure: Figure, format: str) -> bytes:
    """The bytes of a file, png or svg."""
    buffer = BytesIO()
    figure.savefig(buffer, format=format, dpi=200)
    return buffer.getvalue()


def _draw_boxes(axes: Axes, picture: Scene) -> None:
    fills, feet = defaultdict(list), defaultdict(list)
    for span in picture.boxes:
        colour_key = (span.stage, picture.depth, span.pipe, picture.pipes)
        top = _top(picture, span.rank)
        height = picture.box_height
        fills[stage_colour(*colour_key)].append(_rectangle(picture, span, top, top + height))
        if span.category == "backward":
            edge = top if span.name == WEIGHT_HALF else top + (1 - EDGE) * height
            feet[foot_colour(*colour_key)].append(_rectangle(picture, span, edge, edge + EDGE * height))
    for colour, rectangles in [*fills.items(), *feet.items()]:  # the feet lie above the fills
        axes.add_collection(PolyCollection(rectangles, facecolor=colour, edgecolor="white", linewidth=0.6))


def _draw_numbers(axes: Axes, picture: Scene) -> None:
    points = 72.0 * (WIDTH - MARGIN) / picture.end
    tallest = 0.55 * 72.0 * picture.row_inches * picture.box_height
    digits = len(str(max(span.microbatch for span in picture.boxes)))
    for span in picture.boxes:
        width = (span.end - span.start) * picture.per_second
        size = min(MAX_POINTS, tallest, 0.85 * width * points / (0.62 * digits))
        if size < MIN_POINTS:
            continue
        middle = span.start * picture.per_second + width / 2
        height = _top(picture, span.rank) + picture.box_height * _middle(span)
        axes.text(middle, height, str(span.microbatch), size=size, color=INK, ha="center", va="center_baseline")


def _middle(span: Span) -> float:
    """The middle of a number, as a share of its box's height: foot and cap stay free."""
    return {"forward": 0.5, WEIGHT_HALF: 0.5 + EDGE / 2}.get(span.name, 0.5 - EDGE / 2)


def _draw_strips(axes: Axes, picture: Scene) -> None:
    rectangles = defaultdict(list)
    for span in picture.strips:
        top = _top(picture, span.rank) + picture.box_height + STRIP * (0.25 + LANES[span.category])
        rectangles[span.category].append(_rectangle(picture, span, top, top + 0.8 * STRIP))
    for category, boxes in rectangles.items():
        axes.add_collection(PolyCollection(boxes, facecolor=STRIPS[category], linewidth=0))


def dress(axes: Axes, picture: Scene, title: str) -> None:
    """Rows, axis and title of a part of a page."""
    rows = len(picture.rows)
    axes.set_xlim(0, picture.end)
    axes.set_ylim(rows, 0)
    axes.set_yticks([row + 0.5 for row in range(rows)], picture.rows, size=min(9, 60 * picture.row_inches))
    axes.set_xlabel(picture.axis, size=9)
    axes.set_title(title, size=11, loc="left", color=INK)
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    for row in range(1, rows):
        axes.axhline(row, color="#ececee", linewidth=0.6, zorder=0)


def _legend(picture: Scene) -> Iterator[Artist]:
    depth, pipes = picture.depth, picture.pipes
    for stage in range(0, depth, -(-depth // MAX_STAGES)):
        yield Patch(color=stage_colour(stage, depth, 0, pipes), label=f"stage {stage}")
    for pipe in range(pipes) if pipes > 1 else ():
        yield Patch(color=pipe_colour(pipe, pipes), label=f"pipe {pipe}")
    foot = "foot: backward or its input half, cap: weight half" if picture.has_weight_halves else "foot: backward"
    yield Line2D([], [], color=INK, linewidth=2.5, label=foot)
    for category, colour in STRIPS.items():
        if any(span.category == category for span in picture.strips):
            yield Patch(color=colour, label=category.replace("_", "-"))


def _top(picture: Scene, rank: int) -> float:
    height = picture.box_height + 3 * STRIP * bool(picture.strips)
    return rank + (1 - height) / 2


def _rectangle(picture: Scene, span: Span, top: float, bottom: float) -> list[tuple[float, float]]:
    return box(span.start * picture.per_second, span.end * picture.per_second, top, bottom)


def box(left: float, right: float, top: float, bottom: float) -> list[tuple[float, float]]:
    """The corners of a rectangle."""
    return [(left, top), (right, top), (right, bottom), (left, bottom)]
