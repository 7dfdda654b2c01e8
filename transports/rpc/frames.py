"""The kinds of frames between endpoints, and the interface that sends them."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Protocol

from transports.wire.arrays import Block
from transports.wire.frames import FrameKinds, Key


class RpcKind(IntEnum):
    """The kind of a frame."""

    REQUEST = 11  # if `number` is set, the body follows in parts of that number
    RESPONSE = 12  # to a request, in the same form
    REJECTED = 13  # instead of a response
    CANCEL = 14  # the requester no longer waits for the response
    PART = 15  # a part of the body with number `number`, without a header; 0 bytes: the rest will not be sent


KINDS = FrameKinds(RpcKind, headerless=(RpcKind.PART,))


class FrameSink(Protocol):
    """Sends a session's frames: a connection over TCP or on a virtual network."""

    def send(
        self,
        kind: RpcKind,
        key: Key,
        blocks: Sequence[Block] = (),
        note: Any = None,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        """Queue a frame, in order. The blocks' memory is read until the frame is sent or withdrawn.

        Args:
            on_sent: called when the frame is sent, perhaps before this returns; never after `withdraw`.
        Raises:
            TransportError: the frame cannot be encoded or queued; nothing is sent.
        """

    def withdraw(self, kind: RpcKind, number: int) -> None:
        """Withdraw the frame of this kind and number: its memory is not read again, and its rest is not sent."""
