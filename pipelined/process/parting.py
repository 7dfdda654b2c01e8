"""How ranks of one node wait for each other before they go, where the launcher ends all as soon as one has gone.

The one rule: nothing was opened yet, so they have only what the launcher gave them: its process is their parent, and
each knows its number. Of both a rank about to go makes the abstract name of a Unix socket (no file to leave behind),
and tells those that are there already; those that come later tell it.
"""

import os
import socket
import time


def part(rank: int, ranks: int, patience: float) -> bool:
    """Wait until all ranks of the node that have this one's parent are here; whether they are.

    Args:
        rank, ranks: this one among those of its node.
        patience: seconds without a further rank, after which the others are given up.
    """
    others = set(range(ranks)) - {rank}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as here:
        try:
            here.bind(_name(rank))
        except OSError:  # no such names on this system, or ours is taken: nobody can tell us anything
            time.sleep(patience if others else 0.0)
            return not others
        missing = {other for other in others if not _told(here, rank, other)}
        here.settimeout(patience)
        try:
            for _ in others:  # each tells once, and what a stranger says keeps nobody waiting longer
                if missing:
                    missing.discard(int.from_bytes(here.recv(8), "big"))
        except TimeoutError:
            pass
    return not missing


def _told(here: socket.socket, rank: int, other: int) -> bool:
    """Say that this rank is here; whether the other was there to hear it."""
    try:
        here.sendto(rank.to_bytes(8, "big"), _name(other))
    except OSError:
        return False
    return True


def _name(rank: int) -> bytes:
    return f"\0pipelined parting {os.getppid()} {rank}".encode()
