"""Ranks of a benchmark that starts its own processes: one thread each, met over loopback, on a loop to be chosen.

Every rank runs one module with one JSON task, rank 0 alone prints, and its last line is the result.
"""

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pipelined.errors import UsageError
from pipelined.process.exit import USAGE
from transports import new_event_loop

Loop = Literal["select", "epoll", "uvloop"]
Task = dict[str, Any]

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0
"""How long all ranks together may take; reached only if one hangs."""


def check(loop: Loop = "select", least: float = 1, **counts: Iterable[float]) -> None:
    """Look at what was asked for before anything is started.

    Raises:
        UsageError: a loop that is not installed, or counts that are less than the least, by the name of their flag.
    """
    if loop == "uvloop" and find_spec("uvloop") is None:
        raise UsageError("uvloop is not installed (asked for: --loop uvloop); pip install uvloop, or leave --loop out")
    for name, values in counts.items():
        if too_few := [value for value in values if value < least]:
            fact = f"--{name.replace('_', '-')} must be at least {least} (it is {', '.join(map(str, too_few))})"
            raise UsageError(f"{fact}; leave it out or raise it")


def program(main: Callable[[], int | None]) -> int:
    """Run a benchmark's own process to its exit code: 2 where the user can put right what is wrong."""
    try:
        return main() or 0
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE


def launch(module: str, ranks: int, task: Task) -> Any:
    """Run a module on so many ranks of this machine and return what rank 0 tells.

    Raises:
        subprocess.CalledProcessError: a rank failed; its words are on stderr.
    """
    with TemporaryDirectory() as folder:
        words = [sys.executable, "-m", module, json.dumps({**task, "folder": folder})]
        shared = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        environs = [{**os.environ, **shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"} for rank in range(ranks)]
        started = [subprocess.Popen(words, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) for env in environs]
        return json.loads(outputs_of(started)[0].splitlines()[-1])


def outputs_of(started: list["subprocess.Popen[str]"], limit_s: float = LIMIT_S) -> list[str]:
    """What each process printed, once all have ended; if one fails, or all take longer than allowed, none is left."""
    try:
        outputs = [process.communicate(timeout=limit_s)[0] for process in started]
        for process in started:
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, process.args)
        return outputs
    finally:
        for process in started:
            process.kill()
            process.wait()


def free_port() -> int:
    """A port of loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def factory(loop: Loop) -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes a loop of this name; uvloop must be installed to be asked for."""
    match loop:
        case "select":
            return new_event_loop
        case "epoll":
            return asyncio.new_event_loop
        case "uvloop":
            import uvloop

            return uvloop.new_event_loop


def spread(ratios: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    lower, middle, upper = statistics.quantiles(ratios, n=4)
    return lower, middle, upper


def run(main: Callable[[Task], Coroutine[Any, Any, Any]]) -> int:
    """One rank: do the task in the first argument, and let rank 0 tell what came of it."""
    task = json.loads(sys.argv[1])
    with asyncio.Runner(loop_factory=factory(task["loop"])) as runner:
        result = runner.run(main(task))
    if os.environ["RANK"] == "0":
        print(json.dumps(result), flush=True)
    return 0
