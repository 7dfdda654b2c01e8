"""Prove a schedule, price it, and show it as text, JSON, a picture, a trace file or a table."""

import argparse
import json
import shutil
import sys
from pathlib import Path

from pipelined.api.laboratory.proof import Proof, prove
from pipelined.commands.flags import add_shape, arrangement
from pipelined.commands.pairs import PAIRS, pairs, single
from pipelined.errors import writing
from pipelined.schedules import Schedule, TableSchedule, find, write_table

TAKES_KNOBS = True
"""The settings of the schedule that is named are flags, too."""
TIMES = ("forward", "backward", "backward-input", "backward-weight", "p2p")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_shape(parser)
    parser.add_argument(
        "--steps",
        type=int,
        default=1,
        metavar="T",
        help="steps of a segment; more than one only without a flush between them",
    )
    parser.add_argument(
        "--costs",
        metavar=PAIRS,
        default="",
        help="seconds of a stage and of a message: forward=1,backward=2,p2p=0, and of split backwards backward-input "
        "(default: half of the backward) and backward-weight (default: the rest of it; in training the input half of "
        "the first stage takes no time, and its weight half that of the whole backward)",
    )
    proof = parser.add_argument_group("proof")
    proof.add_argument(
        "--mailbox",
        type=int,
        metavar="C",
        help="prove it where a worker waits after a send while more than C of its messages have no receiver yet. "
        "Default: no send blocks",
    )
    proof.add_argument(
        "--blocking-sums", action="store_true", help="prove it for gradient sums that block their worker"
    )
    proof.add_argument(
        "--budget", type=float, metavar="A", help="prove that no worker has over A microbatches (or stage inputs) alive"
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON instead of the grid")
    output.add_argument("--svg", type=Path, metavar="FILE", help="draw it to this file")
    output.add_argument("--png", type=Path, metavar="FILE", help="draw it to this file")
    output.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a Perfetto trace, gzipped if the name ends in .gz"
    )
    output.add_argument(
        "--csv", type=Path, metavar="FILE", help="write it as a table with a row for each worker and cells such as 2F0"
    )


def run(arguments: argparse.Namespace) -> None:
    """Do what the flags say.

    Raises:
        UsageError: nothing has been printed.
    """
    proof = prove(
        arguments.name,
        **arrangement(arguments),
        steps=arguments.steps,
        costs=single("--costs", pairs("--costs", arguments.costs.replace("_", "-"), TIMES)),
        mailbox=arguments.mailbox,
        blocking_sums=arguments.blocking_sums,
        budget=arguments.budget,
    )
    _write_files(arguments, proof)
    _print_skipped(find(arguments.name))
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(json.dumps(proof.to_dict()) if arguments.json else proof.text(columns))


def _write_files(arguments: argparse.Namespace, proof: Proof) -> None:
    if arguments.csv:
        table = write_table(proof.program.stage_map, proof.program.keys)
        with writing(arguments.csv):
            arguments.csv.write_text(table)
    if arguments.trace:
        from pipelined.traces.drawing.spans import spans_of, write_spans

        with writing(arguments.trace):
            write_spans(arguments.trace, proof.timeline.stage_map.workers, spans_of(proof.timeline))
    for format in ("svg", "png"):
        if path := getattr(arguments, format):
            proof.picture().save(path, format)


def _print_skipped(schedule: Schedule) -> None:
    """Print to stderr the actions of a table that were skipped."""
    if isinstance(schedule, TableSchedule) and schedule.omissions:
        kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(schedule.omissions.items()))
        print(
            f"left out of {schedule.name}: {kinds}; the runtime does messages and shards without instructions",
            file=sys.stderr,
        )
