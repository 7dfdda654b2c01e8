"""The processes that `local` of a program starts on this machine: started, watched and ended.

No child outlives this process: it receives SIGUSR1, then SIGKILL, and the kernel kills it if its parent dies. Each has
a process group of its own: a signal to the parent's group, as `timeout` sends it, reaches the parent alone, which ends
the coordinator after those that need it.
"""

import asyncio
import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from pipelined.process.reporting.progress import Say

Child = asyncio.subprocess.Process
PR_SET_PDEATHSIG = 1
MAX_LINE = 1 << 24
"""Bytes of the longest line that a child may print, such as a sample."""
SHUTDOWN_GRACE_S = 10.0
"""Seconds between SIGUSR1 and SIGKILL."""


class ChildFailed(Exception):
    """A process that was started here ended with an error.

    Args:
        which: the process.
        code: its exit code.
    """

    def __init__(self, which: str, code: int):
        super().__init__(f"{which} ended with {code}; what it printed says why")
        self.code = code


@asynccontextmanager
async def started(module: str, words: Sequence[str]) -> AsyncIterator[Child]:
    """A process `python -m MODULE WORDS`, which ends with the block; its output is a pipe."""
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-u",
        "-m",
        module,
        *words,
        stdout=asyncio.subprocess.PIPE,
        limit=MAX_LINE,
        process_group=0,
        preexec_fn=_die_with_parent,
    )
    try:
        yield child
    finally:
        await _end(child)


async def _end(child: Child) -> None:
    """Wait until a child has ended; kill it after SHUTDOWN_GRACE_S, or when this coroutine is cancelled."""
    terminate(child)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_GRACE_S):
                await child.communicate()
    finally:
        kill(child)
        await child.wait()


def terminate(child: Child) -> None:
    """Request a stop, unless it has ended. This may be repeated, while a second SIGTERM would end it at once."""
    _send(child, signal.SIGUSR1)


def kill(child: Child) -> None:
    """Send SIGKILL, unless it has ended."""
    _send(child, signal.SIGKILL)


def _send(child: Child, number: signal.Signals) -> None:
    """Send a signal, unless it has ended. `Popen` would look for its end, and take the exit code away from asyncio."""
    if child.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(child.pid, number)


def _die_with_parent() -> None:
    """In the child: ignore Ctrl-C and SIGHUP, which the parent handles; die with the parent."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@asynccontextmanager
async def started_coordinator(module: str, journal: Path | None, log: str) -> AsyncIterator[tuple[Child, str]]:
    """A coordinator, which ends with the block, and its address.

    Args:
        journal: None: in a directory that is removed at the end.
        log: the level of its events.
    Raises:
        ChildFailed: it ended before it had an address.
    """
    with tempfile.TemporaryDirectory(prefix="pipelined-") as folder:
        words = ["coordinator", "--journal", str(journal or Path(folder, "journal")), "--log", log]
        async with started(module, words) as child:
            address = (await next_line(child)).rpartition(" ")[2].strip()
            if not address:
                raise ChildFailed("the coordinator", await child.wait())
            yield child, address


async def fail_when_ended(coordinator: Child) -> None:
    """Wait for the end of a coordinator, which is an error. Raises ChildFailed."""
    raise ChildFailed("the coordinator", await coordinator.wait())


async def next_line(child: Child) -> str:
    """The next line that a child prints; "" at its end."""
    assert child.stdout is not None  # `started` gives it a pipe
    return (await child.stdout.readline()).decode(errors="replace")


async def forward_output(child: Child, say: Say, except_prefixes: tuple[str, ...]) -> None:
    """Print the output of a child.

    Args:
        except_prefixes: lines that begin with one of these are left out.
    """
    while line := await next_line(child):
        if not line.startswith(except_prefixes):
            say(line.rstrip())
