"""What a channel sends its frames to, and the bytes of memory that its frames may take."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from transports.wire.arrays import Block
from transports.wire.frames import Key, Kind


def nothing() -> None:
    """The callback of a frame that has none."""


class FrameSink(Protocol):
    """Where a channel sends its frames: a connection over TCP or on a virtual network."""

    def send(
        self, kind: Kind, key: Key, blocks: Sequence[Block] = (), note: Any = None, out: Callable[[], None] = nothing
    ) -> None:
        """Queue a frame, in order; the blocks' memory is read until the frame is sent or withdrawn.

        Args:
            out: called when the frame is sent, perhaps before this returns; never after `withdraw`.
        Raises:
            TransportError: what the line cannot carry; nothing is sent.
        """

    def withdraw(self, kind: Kind, number: int) -> None:
        """Read no more of the memory of what was said of this kind and number; what is left of it is not sent."""


class MemoryBudget:
    """Bytes of one connection's messages in its endpoint's memory, while received or handled.

    Args:
        most: the limit.
    """

    __slots__ = ("most", "taken")

    def __init__(self, most: int):
        self.most, self.taken = most, 0

    def fits(self, nbytes: int) -> bool:
        """Whether so many more bytes stay within the limit."""
        return self.taken + nbytes <= self.most
