"""The flags that several commands share: the schedule and its shape, and what a machine's links and cores cost."""

import argparse

from pipelined.errors import UsageError
from pipelined.schedules import Schedule, Shape, knobs_of, known, own_shape
from pipelined.schedules.knobs import set_knobs


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of a schedule and its shape, without its knobs."""
    parser.add_argument("name", metavar="NAME", help=f"{', '.join(known())}, a module, a .py file or a .csv table")
    parser.add_argument("--depth", type=int, metavar="D", help="number of stages (a table knows its own)")
    parser.add_argument("--microbatches", type=int, metavar="N", help="microbatches a step (a table knows its own)")


def add_knobs(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the knobs of this project's schedules, and of the user's own schedule if `name` is one.

    Raises:
        UsageError: that schedule cannot be read, or a knob of it has the name of another flag.
    """
    for knob in knobs_of(None if name.startswith("-") else name):
        kind, choices = type(knob.default), knob.choices or None
        try:
            parser.add_argument(knob.flag, type=kind, default=knob.default, choices=choices, help=knob.help)
        except argparse.ArgumentError as error:
            raise UsageError(f"the knob {knob.name} of {name} has the name of another flag; rename it") from error


def shape_of(arguments: argparse.Namespace, schedule: Schedule) -> Shape:
    """The requested shape; a table gives its own depth and microbatches.

    Raises:
        UsageError: depth or microbatches are missing.
    """
    own = own_shape(schedule)
    depth = own.depth if own and arguments.depth is None else arguments.depth
    microbatches = own.microbatches if own and arguments.microbatches is None else arguments.microbatches
    for flag, value in (("--depth", depth), ("--microbatches", microbatches)):
        if value is None:
            raise UsageError(f"{flag} is missing ({arguments.name} takes more than one); give {flag} with a number")
    return Shape(depth, microbatches, set_knobs(knobs_of(arguments.name), vars(arguments)))


def add_machine(parser: argparse.ArgumentParser, near: str) -> None:
    """Declare the flags of a machine's links, nodes and cores.

    Args:
        near: the links that `--links` describes.
    """
    costs = "alpha (seconds a message), beta (seconds a byte), gamma (seconds to add up a byte)"
    parser.add_argument("--links", default="", help=f"{near}: {costs}; 0 where not given")
    parser.add_argument("--far", default="", help="links between nodes, if they differ: the same names")
    parser.add_argument("--node", type=int, default=0, metavar="R", help="ranks a node; 0: all on one")
    parser.add_argument("--cores", type=int, default=0, metavar="K", help="cores the ranks share; 0: one each")
