"""The exit of a process after an error: every rank exits with the same code, within seconds.

A rank that fails sends its peers the reason and its exit code; a peer that receives them exits with the same code.

Some launchers end all ranks as soon as the first has exited. Under those the ranks of a node wait for one another
(`wait_for_node`). At that time no transport is open, so a rank knows only its launcher's process (the parent of all
ranks of the node) and its own number. From both it builds the abstract name of a Unix socket, which leaves no file
behind. It sends a datagram to every rank that has a socket already; a later rank sends one to it.
"""

import asyncio
import errno
import gc
import os
import re
import signal
import socket
import sys
import threading
import time
from typing import NoReturn

from pipelined.aio.events import printable
from pipelined.process.launch import Launch
from transports import PeerAborted, Transport

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
ORDER_S = 3.0
"""Seconds that an exiting rank waits for the next rank of its node, where the first exit ends all ranks."""
LEAD_S = 0.2
"""Seconds for the peers to receive the reason, before the leading rank kills a job that cannot end by itself."""
GRACE_S = 4.0
"""Seconds that the other ranks wait to be killed by the leading rank."""
LAST_S = 7.0
"""Seconds after which a process that is exiting is killed."""

_CODED = re.compile(r"exit code (\d+): (.*)", re.DOTALL)


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


def exit_in_order(launch: Launch) -> None:
    """Where the launcher ends all ranks after the first exit, wait until all ranks of this node are about to exit.

    So rank 0 has printed its message, and no rank is killed before it has its exit code. On a SIGTERM during the
    wait this rank exits with that code. After the wait SIGTERM is ignored, because an exiting interpreter removes its
    signal handlers before the process ends.
    """
    if launch.kills_on_first_exit:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(USAGE))
        wait_for_node(launch.local_rank, launch.local_size or 1, ORDER_S)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def hold_exit_code(code: int, launch: Launch) -> int:
    """Return the exit code; after an error, ignore the SIGTERM of a launcher that ends all ranks on the first exit."""
    if code != DONE and launch.kills_on_first_exit:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code


def end_process(code: int) -> NoReturn:
    """Exit; after a failure immediately, because threads may still be computing.

    Python's last garbage collections examine no object that exists now: with torch loaded they would take a second.
    """
    if code in (FAILED, INTERRUPTED):
        sys.stdout.flush()
        os._exit(code)
    gc.freeze()
    sys.exit(code)


async def abort_job(transport: Transport, code: int, reason: str, lead: bool) -> int:
    """Send every peer the reason and the exit code of this rank; returns the code.

    Args:
        lead: whether this rank kills the job if the job cannot end by itself (MPI cannot finalize while messages are
            under way).
    """
    await transport.abort(f"exit code {code}: {reason}")
    if transport.aborts_as_one:
        await asyncio.sleep(LEAD_S if lead else GRACE_S)
        transport.abort_job(code)
    return code


def parse_abort(error: PeerAborted) -> tuple[int, str]:
    """The exit code and the reason that a leaving peer sent."""
    coded = _CODED.fullmatch(error.reason)
    return (int(coded[1]), coded[2]) if coded else (FAILED, error.reason)


class Deadline:
    """Kills this process if the block has not ended `LAST_S` seconds after the call of `start`."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def start(self, code: int) -> None:
        """Start the countdown; only the first call counts."""
        if self._timer is None:
            self._timer = threading.Timer(LAST_S, os._exit, (code,))
            self._timer.daemon = True
            self._timer.start()

    def __enter__(self) -> "Deadline":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()


def wait_for_node(rank: int, ranks: int, patience: float) -> bool:
    """Wait until all ranks of the node with the same parent process have called this. Returns whether they have.

    Args:
        rank, ranks: this rank's number on its node, and how many there are.
        patience: seconds to wait for each further rank before giving up.
    """
    others = set(range(ranks)) - {rank}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as here:
        try:
            here.bind(_name(rank))
        except OSError:  # no abstract names on this system, or ours is taken
            time.sleep(patience if others else 0.0)
            return not others
        missing = {other for other in others if not _announced(here, rank, other)}
        here.settimeout(patience)
        try:
            for _ in others:  # one datagram per rank; a foreign datagram cannot prolong the wait
                if missing:
                    missing.discard(int.from_bytes(here.recv(8), "big"))
        except TimeoutError:
            pass
    return not missing


def _announced(here: socket.socket, rank: int, other: int) -> bool:
    """Send this rank's number to the other rank; returns whether its socket exists."""
    try:
        here.sendto(rank.to_bytes(8, "big"), _name(other))
    except OSError:
        return False
    return True


def _name(rank: int) -> bytes:
    return f"\0pipelined parting {os.getppid()} {rank}".encode()
