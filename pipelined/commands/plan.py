"""Find the fastest arrangement of a training program: measure this machine, search by simulation, say why.

Flags that are not listed are the program's: `python -m pipelined plan --out plan.json --preset gpt2 --batch 64`.
If backwards are split, the first stage has only weight halves: no stage needs the gradient of its input.
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from pipelined.commands.flags import add_machine
from pipelined.errors import UsageError

PASSES_ON = True
"""Flags that this command does not know go to the program."""
COMMAND = "python -m pipelined plan"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.allow_abbrev = False
    parser.add_argument(
        "--program", default="apps.gpt2", metavar="MODULE", help="the program to plan for: a module with `subject`"
    )
    parser.add_argument(
        "--global-batch", type=int, metavar="S", help="sequences per step (B·N·W). Open: the program's own"
    )
    parser.add_argument(
        "--ranks", type=int, metavar="R", help="number of ranks to plan for. Open: the ranks that were started"
    )
    parser.add_argument(
        "--memory-limit",
        metavar="BYTES",
        help="bytes that a rank may hold, with K, M or G. Open: its share of the node's memory",
    )
    parser.add_argument(
        "--costs",
        help="do not measure: flops=1e10 (floating-point operations of a rank per second), overhead=0 (additional "
        "seconds per instruction), coding=0 (seconds per byte of a message in the codec, both sides together)",
    )
    add_machine(parser, "links between ranks where they are not measured (without this flag as in one machine)")
    parser.add_argument("--stale", action="store_true", help="include schedules without a flush, which are not exact")
    parser.add_argument(
        "--tries",
        type=int,
        metavar="K",
        help="number of plans to try with real steps, besides data parallelism. Open: 3 if the ranks that were "
        "started are the ranks planned for, and are measured, else 0",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the plan to this file, for --plan of the program"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> None:
    """Do what the flags say. Under a launcher all ranks measure, and rank 0 prints.

    Raises:
        SystemExit: with the exit code where it is not 0; rank 0 has said why.
    """
    from pipelined.process.launch import ALONE, detect
    from pipelined.process.run import refuse

    launch = ALONE
    try:
        launch = detect(os.environ)
        with _speaking(launch.rank == 0):
            code = _run(arguments, launch)
    except UsageError as error:
        code = refuse(error, launch, COMMAND)
    if code:
        raise SystemExit(code)


def _run(arguments: argparse.Namespace, launch: Any) -> int:
    from pipelined.commands.planning import limit_of, stated_costs, stated_machine, tries_of
    from pipelined.planner import Question, search

    model = _planned_model(arguments)
    ranks = launch.world_size or 1 if arguments.ranks is None else arguments.ranks
    if ranks < 1:
        raise UsageError(f"--ranks must be at least 1 (it is {ranks})")
    machine, tries = stated_machine(arguments), tries_of(arguments, launch, ranks)
    if arguments.costs is None:
        return _measured(arguments, launch, model, ranks=ranks, machine=machine, tries=tries)
    limit = limit_of(arguments, launch, ranks)
    costs = stated_costs(arguments, model)
    if launch.rank == 0:
        with _progress() as tell:
            answer = search(Question(model, costs, machine, ranks, limit, arguments.stale), tell)
        _tell(arguments, answer, costs.plain())
    return 0


def _measured(arguments: argparse.Namespace, launch: Any, model: Any, *, ranks: int, machine: Any, tries: int) -> int:
    """Measure on all ranks; rank 0 searches and tells."""
    import asyncio

    from pipelined.actors.agree import agree
    from pipelined.commands.planning import limit_of
    from pipelined.measurement.measure import gpu_bytes, measure
    from pipelined.planner import Question, search
    from pipelined.planner.limits import sizes_that_fit
    from pipelined.planner.trial import try_best
    from pipelined.process.run import run as run_ranks

    limit = limit_of(arguments, launch, ranks, gpu_bytes())
    sizes = sizes_that_fit(model, ranks, limit, arguments.stale)

    async def program(transport: Any) -> int:
        with _progress(transport.rank == 0) as tell:
            found = await measure(transport, model, launch, sizes=sizes, stated=machine, ranks=ranks, tell=tell)

            def answer() -> Any:
                if found is None:
                    return None
                return search(Question(model, found.costs, found.machine, ranks, limit, arguments.stale), tell)

            best = await agree(transport, "plan", asyncio.to_thread(answer))
            if tries:
                best = await try_best(transport, model, launch, best, most=tries, tell=tell)
        if found is not None:
            _tell(arguments, best, found.plain)
        return 0

    return run_ranks(launch, launch.world_size or 1, program, command=COMMAND)


def _tell(arguments: argparse.Namespace, answer: Any, found: dict[str, Any]) -> None:
    from pipelined.planner.explain import as_json, as_text, planned
    from pipelined.planner.plan_file import write_plan

    if arguments.out:
        write_plan(arguments.out, planned(answer, found))
    text = json.dumps(as_json(answer, found)) if arguments.json else as_text(answer, found)
    print(text, flush=True)


def _planned_model(arguments: argparse.Namespace) -> Any:
    """What the program says of itself.

    Raises:
        UsageError: there is no such program. SystemExit: it refuses its flags.
    """
    try:
        program = importlib.import_module(arguments.program)
    except ImportError as error:
        raise UsageError(f"--program {arguments.program} cannot be imported ({error}); name a module") from error
    if not hasattr(program, "subject"):
        raise UsageError(f"--program {arguments.program} has no `subject`; name a program such as apps.gpt2")
    return program.subject(arguments.others, arguments.global_batch)


@contextmanager
def _speaking(speaks: bool) -> Iterator[None]:
    """Let rank 0 alone print what a program has to say of its flags."""
    if speaks:
        yield
        return
    with redirect_stderr(StringIO()), redirect_stdout(StringIO()):
        yield


@contextmanager
def _progress(shown: bool = True) -> Iterator[Callable[[str], None]]:
    """How far it is, on stderr: a line that changes on a terminal; elsewhere the first of each kind."""
    if not shown:
        yield lambda line: None
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        told: set[str] = set()

        def tell(line: str) -> None:
            kind = line.partition(" ")[0] + line.partition(" ")[2].partition(" ")[0].rstrip("0123456789")
            if kind not in told:
                told.add(kind)
                print(line, file=sys.stderr, flush=True)

        yield tell
        return
    with console.status("planning") as status:
        yield status.update
