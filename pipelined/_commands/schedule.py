"""Prove a schedule, price it, and show it as text, JSON, a picture or a trace file."""

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelined._commands import BadInput, writing
from pipelined.checker import check
from pipelined.grid import timeline_grid
from pipelined.pricer import Costs, price
from pipelined.program import OPS
from pipelined.recorder import record
from pipelined.schedules import SCALES, Shape, find, known
from pipelined.timeline import Timed, Timeline

if TYPE_CHECKING:
    from pipelined.trace import Span


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("name", metavar="NAME", help=f"{', '.join(known())}, a dotted module, or a path to a .py file")
    parser.add_argument("--depth", type=int, required=True, metavar="D", help="number of stages")
    parser.add_argument("--microbatches", type=int, required=True, metavar="N", help="microbatches a step")
    parser.add_argument("--pipes", type=int, default=0, metavar="P", help="model replicas, 2f for chimera")
    parser.add_argument("--chunks", type=int, default=1, metavar="V", help="stages of a pipe on each worker")
    parser.add_argument("--scale", default="direct", choices=SCALES, help="how to go beyond D microbatches")
    parser.add_argument("--costs", default="", help="seconds a stage: forward=1,backward=2,p2p=0 and so on")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the grid")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw it")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw it")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write it for Perfetto (gzipped if it ends in .gz)")


def run(arguments: argparse.Namespace) -> None:
    """Do what the flags say.

    Raises:
        ScheduleError, BadInput: nothing has been printed.
    """
    shape = Shape(arguments.depth, arguments.microbatches, arguments.pipes, arguments.chunks, arguments.scale)
    costs = parse_costs(arguments.costs)
    program = record(find(arguments.name), shape, costs)
    check(program)
    timeline = price(program, costs)
    _write_files(arguments, timeline)
    print(json.dumps(as_json(arguments, timeline)) if arguments.json else as_text(timeline))


def parse_costs(text: str) -> Costs:
    """Read `forward=1,backward=2`; what is not named keeps its default.

    Raises:
        BadInput: an unknown name, or no number. ScheduleError: a number that is no duration.
    """
    names = {field.name.replace("_", "-"): field.name for field in fields(Costs)}
    given = {}
    for item in filter(None, text.split(",")):
        name, _, seconds = item.partition("=")
        if name not in names:
            raise BadInput(f"unknown cost {name!r}; known: {', '.join(names)}, as in forward=1,backward=2")
        try:
            given[names[name]] = float(seconds)
        except ValueError as error:
            raise BadInput(f"the cost {item!r} is no number; write it as {name}=1.5") from error
    return Costs(**given)


def as_json(arguments: argparse.Namespace, timeline: Timeline) -> dict[str, Any]:
    """The timeline for programs."""
    return {
        "schedule": arguments.name,
        "depth": arguments.depth,
        "microbatches": arguments.microbatches,
        "workers": [[_instruction(timed) for timed in worker] for worker in timeline.workers],
        "makespan": timeline.makespan,
        "bubble_ratio": timeline.bubble_ratio,
        "peak_activations": timeline.peak_activations,
        "weight_copies": timeline.weight_copies,
    }


def as_text(timeline: Timeline) -> str:
    """The timeline for people."""
    peaks = " ".join(f"{peak:g}" for peak in timeline.peak_activations)
    return (
        f"{timeline_grid(timeline)}\n\n"
        f"makespan          {timeline.makespan:g} s\n"
        f"bubble ratio      {timeline.bubble_ratio:.1%}\n"
        f"peak activations  {peaks} (microbatches a worker)\n"
        f"weight copies     {' '.join(map(str, timeline.weight_copies))} (stages a worker)"
    )


def _instruction(timed: Timed) -> dict[str, Any]:
    i = timed.instruction
    places = {"op": i.op, "stage": i.stage, "microbatch": i.microbatch, "pipe": i.pipe}
    return {**places, "start": timed.start, "end": timed.end}


def _write_files(arguments: argparse.Namespace, timeline: Timeline) -> None:
    if arguments.trace:
        with writing(arguments.trace):
            _write_trace(arguments.trace, timeline)
    for format in ("svg", "png"):
        if path := getattr(arguments, format):
            from pipelined._commands._drawing import Picture, draw, save

            size = f"D = {arguments.depth}, N = {arguments.microbatches}"
            title = f"{arguments.name}, {size}: makespan {timeline.makespan:g}, {timeline.bubble_ratio:.1%} idle"
            rows = [f"worker {worker}" for worker in range(timeline.layout.workers)]
            with writing(path):
                save(draw(Picture(_spans(timeline), rows, title, "time")), path, format)


def _spans(timeline: Timeline) -> list["Span"]:
    from pipelined.trace import Span

    return [
        Span(worker, *_kind(timed), timed.start, timed.end, 0, i.stage, i.microbatch, i.pipe)
        for worker, done in enumerate(timeline.workers)
        for timed in done
        for i in [timed.instruction]
    ]


def _write_trace(path: Path, timeline: Timeline) -> None:
    from pipelined.trace import Tracer, write

    tracers = [Tracer(float) for _ in timeline.workers]
    for span in _spans(timeline):
        place = (span.step, span.stage, span.microbatch, span.pipe)
        tracers[span.rank].record(span.category, span.name, span.start, span.end, place)
    write(path, [tracer.events() for tracer in tracers])


def _kind(timed: Timed) -> tuple[str, str]:
    """(category, name) of an instruction in a trace; both halves of a backward are of category backward."""
    name = OPS[timed.instruction.op]
    return name.partition("_")[0], name
