"""The errors of transports, to which they map the exceptions of libraries.

Between endpoints a request may also raise `Rejected` and `Unreachable` (`transports.rpc.base`).
"""

SAME_RELEASE = "install one release everywhere"
"""The remedy if another release may have sent what is refused."""


class TransportError(Exception):
    """The base class: an error between two ranks."""


class PeerLost(TransportError):
    """A peer's process or link is gone; no more messages will arrive from it.

    Args:
        rank: the peer that was lost.
        reason: the evidence (a closed connection, a missed lease, a report of the launcher).
    """

    def __init__(self, rank: int, reason: str):
        super().__init__(f"lost rank {rank}: {reason}")
        self.rank, self.reason = rank, reason


class PeerAborted(TransportError):
    """A peer failed and sent the reason to all ranks before it ended."""

    def __init__(self, rank: int, reason: str):
        super().__init__(reason)
        self.rank, self.reason = rank, reason


class SizeMismatch(TransportError):
    """A received bare buffer has another size than the receiver expected.

    Args:
        peer: the rank that sent it.
        expected: bytes.
        received: bytes; None: more than expected.
        prefix: the first bytes received, if they were kept; at most `expected` of them.
    """

    def __init__(self, peer: int, channel: int, expected: int, received: int | None, prefix: memoryview):
        sizes = f"expected: {expected} bytes, received: {'more' if received is None else received} bytes"
        super().__init__(f"buffer of another size from rank {peer} on channel {channel} ({sizes})")
        self.peer, self.prefix = peer, prefix


class WireError(TransportError):
    """A message or a frame is invalid, and is not sent or not received.

    At the sender: a key, note or array has no wire form, or exceeds a limit. At the receiver: the bytes are not a valid
    frame, since another program or version sent them, or exceed a limit.
    """


class AuthenticationError(TransportError):
    """The peer could not prove that it holds the shared key."""


class RendezvousError(TransportError):
    """The ranks could not connect: a port in use, rank 0 that cannot be reached, or a rank that did not start."""


class Closed(TransportError):
    """The transport was closed on this side before or during the operation."""
