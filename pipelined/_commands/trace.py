"""Draw what every rank really did in one step, from a file written by --trace."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pipelined._commands import BadInput, writing

if TYPE_CHECKING:
    from pipelined.trace import Span

PASSES = ("forward", "backward")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("file", type=Path, metavar="FILE", help="a trace, gzipped if its name ends in .gz")
    parser.add_argument("--png", type=Path, metavar="OUT", help="draw it")
    parser.add_argument("--svg", type=Path, metavar="OUT", help="draw it")
    parser.add_argument("--step", type=int, metavar="K", help="which step (default: the middle one)")


def run(arguments: argparse.Namespace) -> None:
    """Draw one step, and print where its time went.

    Raises:
        BadInput: no such file, cut short, no trace, or no such step in it; nothing has been written.
    """
    from pipelined.trace import TraceError, read

    try:
        spans = read(arguments.file)
    except TraceError as error:
        raise BadInput(str(error)) from error
    step = _chosen_step([span for span in spans if _is_pass(span)], arguments.step, arguments.file)
    ranks = sorted({span.rank for span in spans})
    shown = _of_step(spans, step, ranks)
    title = f"step {step} on {len(ranks)} ranks: {_summary(shown, len(ranks))}"
    for format in ("svg", "png"):
        if path := getattr(arguments, format):
            from pipelined._commands._drawing import Picture, draw, save

            with writing(path):
                rows = [f"rank {rank}" for rank in ranks]
                save(draw(Picture(shown, rows, title, "time (ms)", 1e3)), path, format)
    print(title)


def _is_pass(span: "Span") -> bool:
    return span.category in PASSES and None not in (span.step, span.stage, span.microbatch, span.pipe)


def _chosen_step(passes: list["Span"], asked: int | None, path: Path) -> int:
    """The step asked for, or the middle one: by then nothing is being done for the first time."""
    steps = sorted({span.step for span in passes})
    if not steps:
        raise BadInput(f"the trace {path} holds no forward or backward of a stage; give a file written by --trace")
    if asked is None:
        return steps[len(steps) // 2]
    if asked not in steps:
        raise BadInput(f"the trace {path} holds no step {asked} (steps: {steps[0]} to {steps[-1]}); choose one of them")
    return asked


def _of_step(spans: list["Span"], step: int, ranks: list[int]) -> list["Span"]:
    """A step's events by row, with time counted from its first forward; idle time is what is left white."""
    mine = [span for span in spans if span.step == step and (_is_pass(span) or span.category not in (*PASSES, "idle"))]
    origin, row = min(span.start for span in mine if _is_pass(span)), {rank: row for row, rank in enumerate(ranks)}
    return [
        replace(span, rank=row[span.rank], start=max(span.start - origin, 0.0), end=span.end - origin)
        for span in mine
        if span.end > origin
    ]


def _summary(spans: list["Span"], ranks: int) -> str:
    end = max(span.end for span in spans)
    busy = sum(span.end - span.start for span in spans if span.category in PASSES)
    return f"{end * 1e3:.1f} ms, {busy / (end * ranks):.0%} of it in forward and backward"
