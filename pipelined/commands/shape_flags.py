"""The flags that say which schedule is meant and for what shape. The rule: they are the same for every command."""

import argparse

from pipelined.errors import UsageError
from pipelined.schedules import SCALES, Schedule, Shape, known
from pipelined.schedules.table import Table


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Declare them."""
    parser.add_argument("name", metavar="NAME", help=f"{', '.join(known())}, a module, a .py file or a .csv table")
    parser.add_argument("--depth", type=int, metavar="D", help="number of stages (a table knows its own)")
    parser.add_argument("--microbatches", type=int, metavar="N", help="microbatches a step (a table knows its own)")
    parser.add_argument("--pipes", type=int, default=0, metavar="P", help="model replicas, 2f for chimera; 0: its own")
    parser.add_argument("--chunks", type=int, default=1, metavar="V", help="stages of a pipe on each worker")
    parser.add_argument("--scale", default="direct", choices=SCALES, help="how to go beyond D microbatches")


def shape_of(arguments: argparse.Namespace, schedule: Schedule) -> Shape:
    """What was asked for; a table knows its own depth and microbatches.

    Raises:
        UsageError: depth or microbatches are missing.
    """
    own = schedule.shape if isinstance(schedule, Table) else None
    depth = own.depth if own and arguments.depth is None else arguments.depth
    microbatches = own.microbatches if own and arguments.microbatches is None else arguments.microbatches
    for flag, value in (("--depth", depth), ("--microbatches", microbatches)):
        if value is None:
            raise UsageError(f"{flag} is missing ({arguments.name} takes more than one); give {flag} with a number")
    return Shape(depth, microbatches, arguments.pipes, arguments.chunks, arguments.scale)
