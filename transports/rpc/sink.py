"""What carries a talk, and the room that what it carries may take. The one rule: neither knows what is talked about."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from transports.wire.arrays import Block
from transports.wire.frames import Key, Kind


def nothing() -> None:
    """What follows a frame that nobody waits for."""


class Line(Protocol):
    """How a talk's frames leave."""

    def say(
        self, kind: Kind, key: Key, blocks: Sequence[Block] = (), note: Any = None, out: Callable[[], None] = nothing
    ) -> None:
        """Send a frame, sooner or later, in the order said; the blocks' memory is read until it is out, or withdrawn.

        Args:
            out: called when the frame is out, perhaps before this returns; never for what was withdrawn.
        Raises:
            TransportError: what the line cannot carry; nothing is sent.
        """

    def withdraw(self, kind: Kind, number: int) -> None:
        """Read no more of the memory of what was said of this kind and number; what is left of it is not sent."""


class Room:
    """Bytes of messages that one connection has in its endpoint's memory, on their way in or being worked on.

    Args:
        most: how many it may have.
    """

    __slots__ = ("most", "taken")

    def __init__(self, most: int):
        self.most, self.taken = most, 0

    def holds(self, nbytes: int) -> bool:
        """Whether there is room for so many more."""
        return self.taken + nbytes <= self.most
