"""The flags of a benchmark that runs on ranks. The rule: what is wrong with them is told once, and all ranks end."""

import os
from typing import TypeVar

import tyro

from pipelined.errors import UsageError
from pipelined.process.launch import ALONE, detect
from pipelined.process.run import parsed, refuse

T = TypeVar("T")


def flags(options: type[T], name: str) -> T:
    """Read the command line of `python -m benchmarks.NAME`.

    Raises:
        SystemExit: 0 behind the help, 2 where the flags cannot be read or contradict one another.
    """
    launch = ALONE
    try:
        launch = detect(os.environ)
        return parsed(launch, lambda: tyro.cli(options, prog=f"python -m benchmarks.{name}"))
    except UsageError as error:
        raise SystemExit(refuse(error, launch)) from error
