"""How a process ends when something is wrong. The one rule: one exit code on every rank, and within seconds.

A rank that fails tells its peers why, and with which exit code; who hears of it ends with the same. This file knows
launchers and the last minutes of a transport; it must not know what the job was doing.
"""

import asyncio
import os
import re
import signal
import sys
import threading
from typing import NoReturn

from pipelined.aio.events import printable
from pipelined.process.launch import Launch
from pipelined.process.parting import part
from transports import PeerAborted, Transport

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
PARTING_S = 3.0
"""How long ranks that refuse wait for a further one to do so, where the first to go ends all."""
LEAD_S = 0.2
"""How long what was told may take to arrive, before a job that cannot end otherwise is ended."""
GRACE_S = 4.0
"""How long the others wait for that."""
LAST_S = 7.0
"""How long a process that is ending may still wait for anything."""

_CODED = re.compile(r"exit code (\d+): (.*)", re.DOTALL)


def tell(text: str) -> None:
    """One write to stderr, so that ranks do not cut into each other's lines.

    The text may hold another machine's words: what a terminal may obey is made U+FFFD.
    """
    sys.stderr.write(printable(text.rstrip("\n")) + "\n")
    sys.stderr.flush()


def hush() -> None:
    """Print no more: whoever read our output (`| head`) has seen enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def part_in_order(launch: Launch) -> None:
    """Wait, where the launcher ends every rank as soon as one has gone, until all of this node are about to go.

    So rank 0 has spoken, and none is ended before it has its code: a SIGTERM to any of them is consent. From then on it
    is ignored, as an interpreter that ends takes its handlers down before it is gone.
    """
    if launch.hasty:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(USAGE))
        part(launch.local_rank, launch.local_size or 1, PARTING_S)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def settled(code: int, launch: Launch) -> int:
    """The exit code, safe from a launcher that ends the other ranks when the first has gone."""
    if code != DONE and launch.hasty:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code


def end_process(code: int) -> NoReturn:
    """Exit; after a failure at once, as threads may still be computing what nobody wants any more."""
    if code in (FAILED, INTERRUPTED):
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


async def leave(transport: Transport, code: int, reason: str, lead: bool) -> int:
    """Tell every peer why and with which code this rank ends; returns the code.

    Args:
        lead: whether this is the rank that ends the job, where it cannot end by itself (MPI cannot be left while
            messages are under way).
    """
    await transport.abort(f"exit code {code}: {reason}")
    if transport.kill_world is not None:
        await asyncio.sleep(LEAD_S if lead else GRACE_S)
        transport.kill_world(code)
    return code


def heard(error: PeerAborted) -> tuple[int, str]:
    """The exit code and the reason that a peer gave when it left."""
    coded = _CODED.fullmatch(error.reason)
    return (int(coded[1]), coded[2]) if coded else (FAILED, error.reason)


class Deadline:
    """Ends this process by force if, once started, the block is not left in time: nobody waits for ever."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def start(self, code: int) -> None:
        """The process is ending; the first call counts."""
        if self._timer is None:
            self._timer = threading.Timer(LAST_S, os._exit, (code,))
            self._timer.daemon = True
            self._timer.start()

    def __enter__(self) -> "Deadline":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
