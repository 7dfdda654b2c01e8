"""The cores that the ranks of one machine may run on together: a launcher may have bound each to some of its own.

The one rule: every rank tells all others of its machine, and hears them, so all count alike. On the sockets that
the ranks have met on, before any frame.
"""

import os
import socket
from collections.abc import Iterable

from transports.errors import WireError
from transports.nursery import Nursery
from transports.tcp.join.control import read_letter, send_letter

MOST_CORES = 1 << 13
"""What Linux can be built for."""


async def cores_together(neighbours: Iterable[socket.socket]) -> int:
    """How many cores this rank and its neighbours may run on, each counted once; all of them call this.

    Args:
        neighbours: the sockets to the other ranks of this machine.
    Raises:
        WireError, OSError: a neighbour sent what is no list of cores, or left; the first error of any of them.
    """
    own = sorted(os.sched_getaffinity(0))
    async with Nursery() as group:
        told = [group.create_task(_exchange(sock, own)) for sock in neighbours]
    return len(set(own).union(*(task.result() for task in told)))


async def _exchange(sock: socket.socket, own: list[int]) -> list[int]:
    await send_letter(sock, "cores", own)
    told = await read_letter(sock, "cores", limit=8 * MOST_CORES)
    if not isinstance(told, list) or not all(type(core) is int and 0 <= core < MOST_CORES for core in told):
        raise WireError("cores that are no numbers; install one release on every rank")
    return told
