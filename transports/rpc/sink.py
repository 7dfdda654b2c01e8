"""The interface through which a channel sends frames, and the memory budget of a connection."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from transports.wire.arrays import Block
from transports.wire.frames import Key, Kind


def nothing() -> None:
    """The default callback: does nothing."""


class FrameSink(Protocol):
    """Sends a channel's frames: a connection over TCP or on a virtual network."""

    def send(
        self, kind: Kind, key: Key, blocks: Sequence[Block] = (), note: Any = None, out: Callable[[], None] = nothing
    ) -> None:
        """Queue a frame, in order. The blocks' memory is read until the frame is sent or withdrawn.

        Args:
            out: called when the frame is sent, perhaps before this returns; never after `withdraw`.
        Raises:
            TransportError: the frame cannot be encoded or queued; nothing is sent.
        """

    def withdraw(self, kind: Kind, number: int) -> None:
        """Withdraw the frame of this kind and number: its memory is not read again, and its rest is not sent."""


class MemoryBudget:
    """Bytes of one connection's messages in its endpoint's memory, while they are received or handled.

    Args:
        most: the limit.
    """

    __slots__ = ("most", "taken")

    def __init__(self, most: int):
        self.most, self.taken = most, 0

    def fits(self, nbytes: int) -> bool:
        """Whether this many more bytes stay within the limit."""
        return self.taken + nbytes <= self.most
