"""A virtual network on which the links of a party take turns on its line up, as in the default queue of Linux.

A plain virtual network sends in the order in which it was asked, so that a short message to one party waits behind all
that was sent to others before.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from transports.emulation.in_flight_queue import InFlightQueue
from transports.emulation.link_timing import Passage
from transports.rpc.virtual.network import VirtualNetwork

TURN_BYTES = 1514
"""Bytes in a turn: fq_codel's quantum, a frame of Ethernet."""


def _nothing() -> None:
    """What is called when a part of a message has arrived that is not its last."""


class _Turns:
    """The messages of one party that are not sent yet, by link."""

    def __init__(self) -> None:
        self._queues: dict[InFlightQueue, deque[tuple[float, Callable[[], None]]]] = {}
        self._busy = False

    def send(self, line: InFlightQueue, nbytes: float, deliver: Callable[[], None]) -> None:
        """Send over this link when it is its turn."""
        self._queues.setdefault(line, deque()).append((nbytes, deliver))
        if not self._busy:
            self._next()

    def wait_on(self, line: InFlightQueue) -> bool:
        """Whether messages of a link wait for their turn."""
        return line in self._queues

    def _next(self) -> None:
        self._busy = bool(self._queues)
        if not self._busy:
            return
        line = next(iter(self._queues))
        queue = self._queues.pop(line)
        nbytes, deliver = queue.popleft()
        if nbytes > TURN_BYTES:
            queue.appendleft((nbytes - TURN_BYTES, deliver))
            nbytes, deliver = TURN_BYTES, _nothing
        departure = line.send(nbytes, deliver).departure
        if queue:
            self._queues[line] = queue
        asyncio.get_running_loop().call_at(departure, self._next)


class _TurnLine:
    """A queue in which messages wait for their turn."""

    def __init__(self, line: InFlightQueue, turns: _Turns):
        self._line, self._turns = line, turns

    def send(self, nbytes: float, deliver: Callable[[], None], sent: float | None = None) -> Passage | None:
        """See `InFlightQueue.send`; when it arrives is not known yet."""
        self._turns.send(self._line, nbytes, deliver)
        return None

    @property
    def is_moving(self) -> bool:
        """See `InFlightQueue.is_moving`; what waits for its turn moves, too."""
        return self._line.is_moving or self._turns.wait_on(self._line)

    def recheck(self, after: float = 0.0) -> None:
        """See `InFlightQueue.recheck`."""
        self._line.recheck(after)


class FairNetwork(VirtualNetwork):
    """See `VirtualNetwork`; links of a party with an access rate take turns."""

    def __init__(self, seed: int = 0, **options: Any):
        super().__init__(seed, **options)
        self._turns = dict[str, _Turns]()

    def _new_queue(self, source: str, destination: str) -> Any:
        line = super()._new_queue(source, destination)
        if source not in self._access_lines or source == destination:
            return line
        return _TurnLine(line, self._turns.setdefault(source, _Turns()))
