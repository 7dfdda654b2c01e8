"""The exit of a process when something is wrong: one exit code on every rank, within seconds.

A rank that fails sends its peers the reason and its exit code; a peer that receives them exits with the same code. This
module knows launchers and the last minutes of a transport, and nothing of the job.

Some launchers end all ranks as soon as the first has exited. There the ranks of a node wait for one another
(`wait_for_node`). At that time no transport is open, so they have only what the launcher gave them: a common parent
process, and a number each. Of both a rank makes the abstract name of a Unix socket (no file to leave behind), and sends
a datagram to every rank that is there already; a later rank sends one to it.
"""

import asyncio
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
"""Seconds that a refusing rank waits for a further one to refuse, where the first exit ends all ranks."""
LEAD_S = 0.2
"""Seconds for the reason to arrive at the peers, before the leading rank kills a job that cannot end by itself."""
GRACE_S = 4.0
"""Seconds that the other ranks wait for that."""
LAST_S = 7.0
"""Seconds after which an ending process is ended by force."""

_CODED = re.compile(r"exit code (\d+): (.*)", re.DOTALL)


def tell(text: str) -> None:
    """One write to stderr, so that ranks do not cut into each other's lines.

    The text may hold another machine's words: what a terminal may obey is made U+FFFD.
    """
    sys.stderr.write(printable(text.rstrip("\n")) + "\n")
    sys.stderr.flush()


def hush() -> None:
    """Print no more: the reader of our output (`| head`) has closed it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_in_order(launch: Launch) -> None:
    """Wait, where the launcher ends every rank as soon as one has gone, until all of this node are about to go.

    So rank 0 has spoken, and none is ended before it has its code: a SIGTERM to any of them is consent. From then on it
    is ignored, as an interpreter that ends takes its handlers down before it is gone.
    """
    if launch.hasty:
        signal.signal(signal.SIGTERM, lambda number, frame: os._exit(USAGE))
        wait_for_node(launch.local_rank, launch.local_size or 1, ORDER_S)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def settled(code: int, launch: Launch) -> int:
    """The exit code, safe from a launcher that ends the other ranks when the first has gone."""
    if code != DONE and launch.hasty:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return code


def end_process(code: int) -> NoReturn:
    """Exit; after a failure at once, as threads may still be computing."""
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
    """Ends this process by force if the block is not left in time once `start` was called."""

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


def wait_for_node(rank: int, ranks: int, patience: float) -> bool:
    """Wait until all ranks of the node that have this one's parent are here. Returns whether they are.

    Args:
        rank, ranks: this one among those of its node.
        patience: seconds without a further rank, after which the others are given up.
    """
    others = set(range(ranks)) - {rank}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as here:
        try:
            here.bind(_name(rank))
        except OSError:  # no such names on this system, or ours is taken: no datagram can reach us
            time.sleep(patience if others else 0.0)
            return not others
        missing = {other for other in others if not _announced(here, rank, other)}
        here.settimeout(patience)
        try:
            for _ in others:  # each sends once, and a foreign datagram makes no rank wait longer
                if missing:
                    missing.discard(int.from_bytes(here.recv(8), "big"))
        except TimeoutError:
            pass
    return not missing


def _announced(here: socket.socket, rank: int, other: int) -> bool:
    """Send the other rank this one's number; whether its socket was there."""
    try:
        here.sendto(rank.to_bytes(8, "big"), _name(other))
    except OSError:
        return False
    return True


def _name(rank: int) -> bytes:
    return f"\0pipelined parting {os.getppid()} {rank}".encode()
