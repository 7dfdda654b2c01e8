"""Find the fastest arrangement of a training program: measure this machine, search by simulation, print the reasons.

Flags that are not listed are the program's: `python -m pipelined plan --out plan.json --preset gpt2 --batch 64`.
The first stage sends no gradient, so its input half costs nothing.
"""

import argparse
import importlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from time import monotonic
from typing import Any

from pipelined.commands.flags import add_machine, machine
from pipelined.commands.pairs import PAIRS, UNITS, pairs, single
from pipelined.errors import JobFailed, UnknownFlags, UsageError, guess

PASSES_ON = True
"""Flags that this command does not know go to the program."""
COMMAND = "python -m pipelined plan"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.allow_abbrev = False
    subject = parser.add_argument_group("what is planned")
    subject.add_argument(
        "--program",
        default="pipelined.apps.gpt2",
        metavar="MODULE",
        help="the program to plan for: a module with `subject`",
    )
    subject.add_argument(
        "--global-batch", type=int, metavar="S", help="sequences per step (B·N·W). Default: the program's own"
    )
    subject.add_argument(
        "--ranks", type=int, metavar="R", help="number of ranks to plan for. Default: the ranks that were started"
    )
    subject.add_argument(
        "--memory-limit",
        metavar="BYTES",
        help="bytes that a rank may hold, with K, M or G. Default: its share of the node's memory",
    )
    parser.add_argument(
        "--costs",
        metavar=PAIRS,
        help="do not measure: flops=1e10 (floating-point operations of a rank per second), overhead=0 (additional "
        "seconds per instruction), coding=0 (seconds per byte of a message in the codec, both sides together)",
    )
    add_machine(parser, "links between ranks where they are not measured (without this flag as in one machine)")
    search = parser.add_argument_group("search")
    search.add_argument("--stale", action="store_true", help="include schedules without a flush, which are not exact")
    search.add_argument(
        "--tries",
        type=int,
        metavar="K",
        help="number of plans to try with real steps, besides data parallelism. Default: 3 if the ranks that were "
        "started are the ranks planned for, and are measured, else 0",
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out", type=Path, metavar="FILE", help="write the plan to this file, for --plan of the program"
    )
    output.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> None:
    """Do what the flags say. Under a launcher all ranks measure, and rank 0 prints.

    Raises:
        SystemExit: with the exit code where it is not 0; rank 0 has said why.
    """
    from pipelined.process.launch import ALONE, detect
    from pipelined.process.refusal import refuse

    launch = ALONE
    try:
        share_devices = "--share-devices" in arguments.others  # a flag of the program
        launch = replace(detect(os.environ), share_devices=share_devices)
        with _silent_unless(launch.rank == 0):
            code = _run(arguments, launch)
    except JobFailed as error:
        code = error.code
    except UsageError as error:
        code = refuse(error, launch, COMMAND)
    if code:
        raise SystemExit(code)


def _run(arguments: argparse.Namespace, launch: Any) -> int:
    from collectives import Links
    from pipelined.api.laboratory.described import machine_of
    from pipelined.api.planning.run_planner import SPEED, run_planner, stated_costs
    from pipelined.planner.request import PlanRequest

    model = model_of_program(arguments.program, arguments.others, arguments.global_batch, arguments.own)
    costs = None
    if arguments.costs is not None:
        numbers = single("--costs", pairs("--costs", arguments.costs, SPEED))
        costs = stated_costs(numbers, model.layer_costs, model.sequence, model.compress)
    request = PlanRequest(
        ranks=(launch.world_size or 1) if arguments.ranks is None else arguments.ranks,
        costs=costs,
        machine=machine_of(**machine(arguments), unstated=Links()),
        memory_limit=memory_limit(arguments.memory_limit),
        without_flush=arguments.stale,
        tries=arguments.tries,
    )
    if costs is not None and launch.rank:
        return 0
    with _progress(launch.rank == 0) as progress:
        planned = run_planner(model, launch, request, progress, COMMAND)
    if launch.rank == 0:
        if arguments.out:
            planned.save(arguments.out)
        print(json.dumps(planned.to_dict()) if arguments.json else planned, flush=True)
    return 0


def memory_limit(text: str | None) -> float | None:
    """Bytes from a text such as 512M.

    Raises:
        UsageError: it is no size.
    """
    if text is None:
        return None
    unit = text[-1:] if text[-1:] in UNITS else ""
    try:
        return float(text.removesuffix(unit)) * UNITS[unit]
    except ValueError as error:
        raise UsageError(f"--memory-limit {text} is no size; write it as 512M or 4G") from error


def model_of_program(
    name: str, flags: Sequence[str], batch: int | None = None, command_flags: Sequence[str] = ()
) -> Any:
    """The model to plan for, of a program with its flags.

    Args:
        name: the module of the program.
        batch: sequences a step, instead of the program's number.
        command_flags: the flags of the command; the user may have meant one of them.
    Raises:
        UsageError: there is no such program, or it refuses its flags.
    """
    try:
        program = importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"--program {name} cannot be imported ({error}); name a module") from error
    if not hasattr(program, "subject"):
        raise UsageError(f"--program {name} has no `subject`; name a program such as pipelined.apps.gpt2")
    try:
        return program.subject(flags, batch)
    except UnknownFlags as error:
        guesses = [similar for word in error.flags if (similar := guess(word, command_flags))]
        if not guesses:
            raise
        raise UsageError(f"{error}; {guesses[0].rstrip()}") from error


@contextmanager
def _silent_unless(prints: bool) -> Iterator[None]:
    """Suppress stdout and stderr of the block unless the rank prints: one rank prints errors of a program's flags."""
    if prints:
        yield
        return
    with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
        yield


@contextmanager
def _progress(prints: bool) -> Iterator[Callable[[str], None]]:
    """Report progress on stderr: on a terminal one changing line, elsewhere a line every few seconds."""
    if not prints:
        yield lambda line: None
        return
    from rich.console import Console

    from pipelined.process.exit import print_to_stderr
    from pipelined.process.reporting.progress import Progress

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield Progress(monotonic, print_to_stderr).show
        return
    with console.status("planning") as status:
        yield status.update
