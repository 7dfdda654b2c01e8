"""Price one step of a whole job: its time, idle ranks, memory and bytes a link, on a machine of your choice."""

import argparse
import json
from pathlib import Path

from pipelined.api.laboratory.cost_names import COSTS, SIZES
from pipelined.commands.flags import add_machine, add_shape, arrangement, machine
from pipelined.commands.pairs import PAIRS, pairs
from pipelined.errors import writing
from pipelined.programs.overlap import SUM_STARTS

TAKES_KNOBS = True
"""The settings of the schedule that is named are flags, too."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add_shape(parser)
    simulated = parser.add_argument_group("what is simulated")
    simulated.add_argument("--width", type=int, default=1, metavar="W", help="pipeline groups side by side")
    simulated.add_argument(
        "--tensor",
        type=int,
        default=1,
        metavar="T",
        help="ranks of a worker; --costs are then those of a worker with the moves among its ranks, --memory those of "
        "a rank",
    )
    simulated.add_argument(
        "--costs",
        metavar=PAIRS,
        default="",
        help="seconds of a stage: forward (1), backward (2), backward-input (default: half of the backward), "
        "backward-weight (default: the rest of it), update (0); one number for all stages, or one for each: "
        "forward=1/1/2/1 (in training the input half of the first stage takes no time, and its weight half that of the "
        "whole backward)",
    )
    simulated.add_argument(
        "--memory",
        metavar=PAIRS,
        default="",
        help="bytes of a stage, with K, M or G: message (sent to the next stage, per microbatch), activation (kept per "
        "microbatch), pending (kept between the halves of its backward), boundary (kept with --recompute), parameters; "
        "0 if not given",
    )
    add_machine(parser, "links between ranks")
    sums = parser.add_argument_group("gradient sums")
    sums.add_argument(
        "--interference",
        type=float,
        default=0.0,
        metavar="X",
        help="share of a rank's computing that is lost while it takes part in a sum",
    )
    simulated.add_argument(
        "--recompute",
        action="store_true",
        help="keep only the input and output of a stage, and run its forward again before its backward",
    )
    sums.add_argument(
        "--sync",
        default="gap",
        choices=SUM_STARTS,
        help="start of a stage's gradient sum: after its last backward (eager), there only if an idle gap follows "
        "(gap), or after the worker's last instruction (after)",
    )
    sums.add_argument("--all-reduce", default="rabenseifner", metavar="NAME", help="algorithm of the gradient sums")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument(
        "--trace", type=Path, metavar="FILE", help="write a Perfetto trace, gzipped if the name ends in .gz"
    )


def run(arguments: argparse.Namespace) -> None:
    """Do what the flags say.

    Raises:
        UsageError: nothing has been printed.
    """
    from pipelined.api.laboratory.simulation import simulate

    simulated = simulate(
        arguments.name,
        **arrangement(arguments),
        width=arguments.width,
        tensor=arguments.tensor,
        costs=pairs("--costs", arguments.costs, COSTS),
        memory=pairs("--memory", arguments.memory, SIZES, sizes=True),
        **machine(arguments),
        interference=arguments.interference,
        recompute=arguments.recompute,
        sync=arguments.sync,
        all_reduce=arguments.all_reduce,
    )
    if arguments.trace:
        from pipelined.traces.drawing.spans import write_spans

        with writing(arguments.trace):
            write_spans(arguments.trace, simulated.plan.world_size, simulated.spans())
    print(json.dumps(simulated.to_dict()) if arguments.json else simulated)
