"""Draw the work of every rank in one step of a trace, alone or beside an expected step."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelined.errors import UsageError, writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pipelined.traces.drawing.comparison import Pass
    from pipelined.traces.file import Span


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a trace, gzipped if its name ends in .gz")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw it to this file")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it to this file")
    parser.add_argument("--step", type=int, metavar="K", help="number of the step. Default: the middle one")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="FILE",
        help="trace of the expected step, by schedule, simulate or another run: draw both over one axis, and their "
        "differences",
    )
    parser.add_argument(
        "--fit",
        action="store_true",
        help="scale the expected step to the measured work, for example if its unit is the time of a forward",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> None:
    """Draw one step, and print its times and its differences from the expected step.

    Raises:
        UsageError: a file is missing, truncated or no trace, or it has no such step; or the two steps are of different
            programs. Nothing has been written.
    """
    from pipelined.traces.drawing.steps import read_step

    if arguments.fit and not arguments.against:
        raise UsageError(
            "--fit scales the expected step, and none is given; add --against with a trace, or leave --fit out"
        )
    step, rows, spans = read_step(arguments.file, arguments.step)
    title = f"step {step} on {len(rows)} ranks: {_summary(spans, len(rows))}"
    if arguments.against:
        _compare(arguments, spans, rows, title, step)
        return
    _save(arguments, lambda: _picture(spans, rows, title))
    print(json.dumps(step_to_dict(step, spans, len(rows))) if arguments.json else title)


def _picture(spans: list["Span"], rows: list[str], title: str) -> "Figure":
    from pipelined.traces.drawing.figure import draw
    from pipelined.traces.drawing.scene import Scene

    return draw(Scene(spans, rows, title, "time (ms)", 1e3))


def step_to_dict(step: int, spans: list["Span"], ranks: int) -> dict[str, Any]:
    """A step as JSON: the seconds until its end, and the seconds of each rank by category."""
    seconds = [dict[str, float]() for _ in range(ranks)]
    for span in spans:
        seconds[span.rank][span.category] = seconds[span.rank].get(span.category, 0.0) + span.end - span.start
    return {"step": step, "seconds": max(span.end for span in spans), "ranks": seconds}


def _compare(arguments: argparse.Namespace, spans: list["Span"], rows: list[str], title: str, step: int) -> None:
    from pipelined.traces.drawing.comparison import (
        as_rows,
        last_end,
        repeat_for_groups,
        report,
        scale_expected,
        side_by_side,
    )
    from pipelined.traces.drawing.steps import read_step

    _, _, expected = read_step(arguments.against, None)
    expected = repeat_for_groups(expected, len(rows))
    if arguments.fit:
        expected = scale_expected(spans, expected)
    passes = side_by_side(spans, expected)
    name = f"expected, {arguments.against.name}{' (scaled)' if arguments.fit else ''}"
    titles = [f"measured, {title}", f"{name}: {_summary(expected, len(rows))}"]
    _save(arguments, lambda: _page(spans, expected, rows, titles, passes))
    if arguments.json:
        ends = {"last_backward": last_end(spans), "expected_last_backward": last_end(expected)}
        print(json.dumps({**step_to_dict(step, spans, len(rows)), **ends, "passes": as_rows(passes)}))
        return
    measured_ms, expected_ms = last_end(spans) * 1e3, last_end(expected) * 1e3
    ratio = f"{measured_ms / expected_ms:.3f}x"
    end = f"the last backward ended at {measured_ms:.1f} ms, expected {expected_ms:.1f} ms ({ratio})"
    print("\n".join([*titles, end, "", report(passes)]))


def _page(
    measured: list["Span"], expected: list["Span"], rows: list[str], titles: list[str], passes: list["Pass"]
) -> "Figure":
    from pipelined.traces.drawing.comparison_page import draw_comparison
    from pipelined.traces.drawing.scene import Scene

    until = max(span.end for span in (*measured, *expected))
    measured_scene, expected_scene = (
        Scene(spans=spans, rows=rows, title=title, axis="time (ms)", per_second=1e3, until=until)
        for spans, title in zip((measured, expected), titles, strict=True)
    )
    return draw_comparison(measured_scene, expected_scene, passes)


def _save(arguments: argparse.Namespace, figure: Callable[[], "Figure"]) -> None:
    for format in ("svg", "png"):
        if path := getattr(arguments, format):
            from pipelined.traces.drawing.figure import figure_bytes

            with writing(path):
                path.write_bytes(figure_bytes(figure(), format))


def _summary(spans: list["Span"], ranks: int) -> str:
    end = max(span.end for span in spans)
    busy = sum(span.end - span.start for span in spans if span.category in ("forward", "backward"))
    return f"{end * 1e3:.1f} ms, {busy / (end * ranks):.0%} of it in forward and backward"
