"""The flags that several commands share: the schedule and its shape, and what a machine's links and cores cost."""

import argparse
from typing import Any

from pipelined.api.laboratory.cost_names import LINK
from pipelined.commands.pairs import PAIRS, pairs, single
from pipelined.errors import UsageError
from pipelined.schedules import knobs_of, schedule_names


def add_shape(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of a schedule and its shape, without its knobs."""
    group = parser.add_argument_group("schedule")
    names = ", ".join(schedule_names())
    group.add_argument("name", metavar="NAME", help=f"{names}, a module, a .py file or a .csv table")
    group.add_argument("--depth", type=int, metavar="D", help="number of stages; a table has its own")
    group.add_argument("--microbatches", type=int, metavar="N", help="microbatches per step; a table has its own")


def add_knobs(parser: argparse.ArgumentParser, name: str) -> None:
    """Declare the knobs of this project's schedules, and of the user's own schedule if `name` is one.

    Raises:
        UsageError: that schedule cannot be read, or a knob of it has the name of another flag.
    """
    group = parser.add_argument_group("settings of schedules")
    for knob in knobs_of(None if name.startswith("-") else name):
        kind = type(knob.default)
        choices = knob.choices or None
        try:
            group.add_argument(knob.flag, type=kind, default=knob.default, choices=choices, help=knob.help)
        except argparse.ArgumentError as error:
            raise UsageError(f"the knob {knob.name} of {name} has the name of another flag; rename it") from error


def arrangement(arguments: argparse.Namespace) -> dict[str, Any]:
    """The flags of a schedule and its shape, as arguments of `prove` and `simulate`."""
    knobs = {knob.name: getattr(arguments, knob.name) for knob in knobs_of(arguments.name)}
    return {"depth": arguments.depth, "microbatches": arguments.microbatches, **knobs}


def add_machine(parser: argparse.ArgumentParser, near: str) -> None:
    """Declare the flags of a machine's links, nodes and cores.

    Args:
        near: the links that `--links` describes.
    """
    costs = "alpha (seconds per message), beta (seconds per byte), gamma (seconds to add a byte)"
    group = parser.add_argument_group("machine")
    group.add_argument("--links", default="", metavar=PAIRS, help=f"{near}: {costs}; a missing one is 0")
    group.add_argument("--far", default="", metavar=PAIRS, help="links between nodes, if they differ; the same names")
    group.add_argument("--node", type=int, default=0, metavar="R", help="ranks per node; 0: all ranks on one node")
    group.add_argument(
        "--cores", type=int, default=0, metavar="K", help="cores that the ranks share; 0: one core per rank"
    )


def machine(arguments: argparse.Namespace) -> dict[str, Any]:
    """The flags of `add_machine`, as arguments of `machine_of`."""
    links, far = (single(f"--{name}", pairs(f"--{name}", getattr(arguments, name), LINK)) for name in ("links", "far"))
    return {"links": links, "far": far, "node": arguments.node, "cores": arguments.cores}
