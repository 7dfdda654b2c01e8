"""A program on ranks, from its command line to its exit code."""

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from apps.common.exit_code import exit_code
from pipelined.process.launch import ALONE, Launch, detect
from pipelined.process.refusal import parse_flags, refuse
from pipelined.process.reporting.events import Level, log_to_stderr


class LaunchedFlags(Protocol):
    """The flags that decide how a process of ranks starts."""

    @property
    def log(self) -> Level: ...

    @property
    def transport(self) -> str: ...

    @property
    def share_devices(self) -> bool: ...


F = TypeVar("F", bound=LaunchedFlags)


def run_program(name: str, parse: Callable[[], F], work: Callable[[F, Launch], int]) -> int:
    """Parse the flags, detect the launcher, and work; returns the exit code, 2 or 130 where there was none.

    Args:
        name: as a user types the program; its errors begin with it.
        work: runs this process's ranks to their exit code.
    Raises:
        SystemExit: as raised by `parse`.
    """
    launch = ALONE
    try:
        launch = detect(os.environ)
        flags = parse_flags(launch, parse)
        log_to_stderr(flags.log)
        launch = replace(detect(os.environ, flags.transport), share_devices=flags.share_devices)
        return work(flags, launch)
    except (Exception, KeyboardInterrupt) as error:
        code = exit_code(error, lambda refusal: refuse(refusal, launch, name))
        if code is None:
            raise
        return code
