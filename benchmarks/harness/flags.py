"""The flags of a benchmark that runs on ranks. A mistake is reported once, and all ranks end."""

import os
from typing import TypeVar

import tyro

from pipelined.errors import UsageError
from pipelined.process.launch import ALONE, detect
from pipelined.process.refusal import parse_flags, refuse

T = TypeVar("T")


def flags(options: type[T], name: str) -> T:
    """Read the command line of `python -m benchmarks.NAME`.

    Raises:
        SystemExit: 0 after the help, 2 where the flags cannot be read or contradict one another.
    """
    launch = ALONE
    try:
        launch = detect(os.environ)
        return parse_flags(launch, lambda: tyro.cli(options, prog=f"python -m benchmarks.{name}"))
    except UsageError as error:
        raise SystemExit(refuse(error, launch)) from error


def lacks_ranks(name: str, least: int = 2) -> int:
    """Exit code 2, and how to start them, where `python -m benchmarks.NAME` has fewer ranks of MPI; else 0."""
    launch = detect(os.environ)
    if launch.url == "mpi://" and (launch.world_size or 1) >= least:
        return 0
    fact = f"{least} ranks of MPI are needed (launched by: {launch.launcher}, ranks: {launch.world_size or 1})"
    return refuse(UsageError(f"{fact}; mpirun -n {least} python -m benchmarks.{name}"), launch)
