"""Prove a schedule, price it, and show it as text, JSON, a picture, a trace file or a table."""

import argparse
import json
import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pipelined.commands.flags import add_shape, shape_of
from pipelined.errors import UsageError, writing
from pipelined.programs.check import check
from pipelined.programs.instructions import Program
from pipelined.programs.overlap import with_sums
from pipelined.programs.price import Costs, price
from pipelined.programs.record import record
from pipelined.programs.steady import Steady, steady
from pipelined.programs.text_drawing import timeline_grid
from pipelined.programs.timeline import Timed, Timeline
from pipelined.schedules import Schedule, Shape, find
from pipelined.schedules.table import TableSchedule, write_table

TAKES_KNOBS = True
"""The settings of the schedule that is named are flags, too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_shape(parser)
    parser.add_argument(
        "--steps", type=int, default=1, metavar="T", help="steps of a segment, where there is no flush between them"
    )
    parser.add_argument(
        "--costs",
        default="",
        help="seconds a stage: forward=1,backward=2,p2p=0, of split backwards backward-input=1,backward-weight=1 (in a "
        "model that trains the first stage's input half is nothing, and its weight half all of its backward)",
    )
    parser.add_argument(
        "--mailbox",
        type=int,
        metavar="C",
        help="prove it for sends that block while more than C messages are not requested",
    )
    parser.add_argument(
        "--blocking-sums", action="store_true", help="prove it for gradient sums that block their worker"
    )
    parser.add_argument(
        "--budget", type=float, metavar="A", help="prove that no worker has more than A microbatches alive"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the grid")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it to this file")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw it to this file")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write it for Perfetto (gzipped if it ends in .gz)")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write it as a table, a row a worker, as in 2F0")


def run(arguments: argparse.Namespace) -> None:
    """Do what the flags say.

    Raises:
        UsageError: nothing has been printed.
    """
    schedule, costs = find(arguments.name), parse_costs(arguments.costs)
    shape = replace(shape_of(arguments, schedule), steps=arguments.steps)
    program = record(schedule, shape, costs)
    check(program, mailbox=arguments.mailbox, blocking_sums=arguments.blocking_sums, budget=arguments.budget)
    timeline = price(with_sums(program, costs=costs), costs)
    _write_files(arguments, shape, program, timeline)
    _print_skipped(schedule)
    settled = None if timeline.layout.updates.flushes else steady(schedule, shape, costs)
    if arguments.json:
        print(json.dumps(as_json(arguments.name, shape, timeline, settled)))
    else:
        print(as_text(timeline, settled))


def parse_costs(text: str) -> Costs:
    """Read `forward=1,backward=2`; what is not named keeps its default.

    Raises:
        UsageError: an unknown name, no number, or work that takes no time. ScheduleError: a number that is no duration.
    """
    names = {field.name.replace("_", "-"): field.name for field in fields(Costs)}
    given = {}
    for item in filter(None, text.split(",")):
        name, _, seconds = item.partition("=")
        if name not in names:
            raise UsageError(f"unknown cost {name!r}; known: {', '.join(names)}, as in forward=1,backward=2")
        try:
            given[names[name]] = float(seconds)
        except ValueError as error:
            raise UsageError(f"the cost {item!r} is no number; write it as {name}=1.5") from error
        if given[names[name]] == 0 and name != "p2p":
            raise UsageError(f"work takes time (the cost {item}); give more than 0, only p2p can be free")
    return Costs(**given)


def as_json(name: str, shape: Shape, timeline: Timeline, settled: Steady | None = None) -> dict[str, Any]:
    """The timeline for programs; of an asynchronous schedule with what it settles at."""
    without_flush = {}
    if settled is not None:
        without_flush = {"steps": shape.steps, "staleness": settled.staleness, "steady_step": settled.step}
    return {
        "schedule": name,
        "depth": shape.depth,
        "microbatches": shape.microbatches,
        "workers": [[_instruction(timed) for timed in worker] for worker in timeline.computations],
        "sums": [
            {"stage": timed.instruction.stage, "worker": worker, "start": timed.start}
            for worker, sums in enumerate(timeline.sums)
            for timed in sums
        ],
        "makespan": timeline.makespan,
        "bubble_ratio": timeline.bubble_ratio,
        "peak_activations": timeline.peak_activations,
        "weight_copies": timeline.weight_copies,
        **without_flush,
    }


def as_text(timeline: Timeline, settled: Steady | None = None) -> str:
    """The timeline for people; of an asynchronous schedule with what it settles at.

    Rows are folded to the width of their terminal, if it is one.
    """
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    held, without_flush = "stages", ""
    if settled is not None:
        held, delays = "versions", " ".join(map(str, settled.staleness))
        without_flush = f"\nstaleness         {delays} (updates a stage)\nsteady step       {settled.step:g} s"
    peaks = " ".join(f"{peak:g}" for peak in timeline.peak_activations)
    return (
        f"{timeline_grid(timeline, columns)}\n\n"
        f"makespan          {timeline.makespan:g} s\n"
        f"bubble ratio      {timeline.bubble_ratio:.1%}\n"
        f"peak activations  {peaks} (microbatches a worker)\n"
        f"weight copies     {' '.join(map(str, timeline.weight_copies))} ({held} a worker)"
        f"{without_flush}"
    )


def _instruction(timed: Timed) -> dict[str, Any]:
    i = timed.instruction
    places = {"op": i.op, "stage": i.stage, "microbatch": i.microbatch, "pipe": i.pipe}
    return {**places, "start": timed.start, "end": timed.end}


def _write_files(arguments: argparse.Namespace, shape: Shape, program: Program, timeline: Timeline) -> None:
    if arguments.csv:
        table = write_table(program)
        with writing(arguments.csv):
            arguments.csv.write_text(table)
    if arguments.trace:
        from pipelined.api.laboratory.spans import spans_of, write_trace

        with writing(arguments.trace):
            write_trace(arguments.trace, timeline.layout.workers, spans_of(timeline))
    for format in ("svg", "png"):
        if path := getattr(arguments, format):
            _draw(arguments.name, shape, timeline, path, format)


def _draw(name: str, shape: Shape, timeline: Timeline, path: Path, format: str) -> None:
    from pipelined.api.laboratory.drawing import Picture, draw, save
    from pipelined.api.laboratory.spans import spans_of

    size = f"D = {shape.depth}, N = {shape.microbatches}"
    title = f"{name}, {size}: makespan {timeline.makespan:g}, {timeline.bubble_ratio:.1%} idle"
    rows = [f"worker {worker}" for worker in range(timeline.layout.workers)]
    with writing(path):
        save(draw(Picture(spans_of(timeline), rows, title, "time")), path, format)


def _print_skipped(schedule: Schedule) -> None:
    """Print to stderr the actions of a table that were skipped."""
    if isinstance(schedule, TableSchedule) and schedule.skipped:
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(schedule.skipped.items()))
        print(
            f"left out of {schedule.name}: {kinds}; the runtime does messages and shards without instructions",
            file=sys.stderr,
        )
