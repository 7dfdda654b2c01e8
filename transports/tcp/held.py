"""What stays at its sender until the receiver asks for it: offered under a number, kept as views of its memory.

The one rule: once offered it is delivered when asked for, whatever becomes of the sender's task; a cancelled one leaves
a copy. No I/O.
"""

import asyncio
from collections.abc import Sequence

from transports.errors import TransportError, WireError
from transports.event_loop import settle
from transports.tcp.flow_control import Credit
from transports.tcp.writer import Outgoing

NUMBERS = 1 << 16


class Held:
    """One offered message's body, and whom to wake when its memory is free.

    Args:
        cost: bytes that the offer takes at the receiver, by `transports.tcp.flow_control.overhead`.
    """

    __slots__ = ("cost", "frame", "free", "nbytes", "views")

    def __init__(self, views: Sequence[memoryview], cost: int):
        self.cost = cost
        self.views = list(views)
        self.nbytes = sum(view.nbytes for view in views)
        self.frame: Outgoing | None = None
        self.free: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def leaves(self, frame: Outgoing | None) -> None:
        """It was asked for and is being written: its memory is free when the frame is out (None: it is)."""
        if frame is None:
            return self.settle()
        self.frame = frame
        frame.written.add_done_callback(
            lambda written: self.settle(None if written.cancelled() else written.exception())
        )

    def detach(self) -> None:
        """Its sender was cancelled: go on from memory of its own."""
        if self.frame is not None:
            self.frame.detach()
        self.views = [memoryview(bytes(view)) for view in self.views]

    def settle(self, error: BaseException | None = None) -> None:
        settle(self.free, error)


class Shelf:
    """All that is held for one peer, by number.

    Args:
        offers: counts what the offers take at the peer.
    """

    def __init__(self, offers: Credit):
        self._offers = offers
        self._held: dict[int, Held] = {}
        self._next = 0

    def put(self, held: Held) -> int:
        """Keep this; returns its number.

        Raises:
            TransportError: no number is free, or the offers would take more at the peer than they may.
        """
        if len(self._held) == NUMBERS or not self._offers.spend(held.cost):
            raise TransportError(
                f"too many messages wait at their sender to be asked for (number: {len(self._held)}, most: {NUMBERS}, "
                f"headers: {self._offers}); await some before more"
            )
        while self._next in self._held:
            self._next = (self._next + 1) % NUMBERS
        number, self._next = self._next, (self._next + 1) % NUMBERS
        self._held[number] = held
        return number

    def pop(self, number: int) -> Held:
        """Give what was asked for; raises WireError where there is no such."""
        if number not in self._held:
            raise WireError(f"a message was asked for that is not held here (number: {number})")
        held = self._held.pop(number)
        self._offers.save(held.cost)
        return held

    def clear(self) -> dict[int, Held]:
        """Give everything."""
        held, self._held = self._held, {}
        return held
