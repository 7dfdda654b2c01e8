"""The exit of a process after an error: every rank exits with the same code, within seconds.

A rank that fails sends its peers the reason and its exit code; a peer that receives them exits with the same code.
"""

import asyncio
import errno
import gc
import os
import re
import signal
import sys
import threading
from typing import NoReturn

from pipelined.errors import printable
from pipelined.process.launch import Launch
from transports import PeerAborted, Transport

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
REASON_S = 0.2
"""Seconds for the peers to receive the reason, before the leading rank kills a job that cannot end by itself."""
KILL_WAIT_S = 4.0
"""Seconds that the other ranks wait to be killed by the leading rank."""
EXIT_S = 7.0
"""Seconds after which a process that is exiting is killed."""

_REASON = re.compile(r"exit code (\d+): (.*)", re.DOTALL)


def print_to_stderr(text: str) -> None:
    """Print a text to stderr in one write, so that the lines of several ranks do not mix.

    The text may come from another machine: its control characters are replaced by U+FFFD.
    """
    sys.stderr.write(printable(text.rstrip("\n")) + "\n")
    sys.stderr.flush()


def print_line(text: str) -> None:
    """Print a line to stdout at once. After its terminal was closed, this and later lines are dropped: SIGHUP follows.

    The text may come from another machine or from a model: its control characters are replaced by U+FFFD.
    """
    try:
        print(printable(text), flush=True)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        silence_stdout()


def silence_stdout() -> None:
    """Stop printing: the reader of our output (`| head`) has closed it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def hold_exit_code(code: int, launch: Launch) -> int:
    """Return the exit code; after an error, ignore the SIGTERM of a launcher that ends all ranks on the first exit."""
    if code != DONE and launch.kills_on_first_exit and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code


def end_process(code: int) -> NoReturn:
    """Exit; immediately after a failure, because threads may still be computing.

    Python's last garbage collections examine no object that exists now: with torch loaded they would take a second.
    """
    if code in (FAILED, INTERRUPTED):
        sys.stdout.flush()
        os._exit(code)
    gc.freeze()
    sys.exit(code)


async def abort_peers(transport: Transport, code: int, reason: str, kills_job: bool) -> int:
    """Send every peer the reason and the exit code of this rank; returns the code.

    Args:
        kills_job: whether this rank kills the job if the job cannot end by itself (MPI cannot finalize while messages
            are under way).
    """
    await transport.abort(f"exit code {code}: {reason}")
    if transport.aborts_as_one:
        await asyncio.sleep(REASON_S if kills_job else KILL_WAIT_S)
        transport.abort_job(code)
    return code


def parse_abort(error: PeerAborted) -> tuple[int, str]:
    """The exit code and the reason that a leaving peer sent."""
    match = _REASON.fullmatch(error.reason)
    return (int(match[1]), match[2]) if match else (FAILED, error.reason)


class Deadline:
    """Kills this process if the block has not ended `EXIT_S` seconds after the call of `start`."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def start(self, code: int) -> None:
        """Start the countdown; only the first call counts."""
        if self._timer is None:
            self._timer = threading.Timer(EXIT_S, os._exit, (code,))
            self._timer.daemon = True
            self._timer.start()

    def __enter__(self) -> "Deadline":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
