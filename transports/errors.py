"""Every error a transport can raise, in one place. Foreign exceptions are mapped to these at the border."""


class TransportError(Exception):
    """The root: anything that went wrong between two ranks."""


class PeerLost(TransportError):
    """A peer's process or link is gone; nothing more will come from it.

    Args:
        rank: the peer that was lost.
        reason: what was seen (a closed connection, a missed lease, a launcher's word).
    """

    def __init__(self, rank: int, reason: str):
        super().__init__(f"lost rank {rank}: {reason}")
        self.rank, self.reason = rank, reason


class PeerAborted(TransportError):
    """A peer failed by itself and told everybody why before it went."""

    def __init__(self, rank: int, reason: str):
        super().__init__(reason)
        self.rank, self.reason = rank, reason


class SizeMismatch(TransportError):
    """A bare buffer came that has another size than the receiver expected.

    Args:
        expected: bytes.
        came: bytes; None: more than expected.
        beginning: the first bytes that came, where they were few enough to be at hand; at most `expected` of them.
    """

    def __init__(self, peer: int, channel: int, expected: int, came: int | None, beginning: memoryview):
        sizes = f"expected: {expected} bytes, came: {'more' if came is None else came} bytes"
        super().__init__(f"buffer of another size from rank {peer} on channel {channel} ({sizes})")
        self.beginning = beginning


class WireError(TransportError):
    """Bytes that are not a frame: from a stranger, another version, or beyond a limit (all three are named)."""


class AuthenticationError(TransportError):
    """The other side could not prove that it holds the shared key."""


class RendezvousError(TransportError):
    """The ranks could not find one another: a taken port, an unreachable coordinator, a rank that never came."""


class Closed(TransportError):
    """The transport was closed on this side while, or before, the operation ran."""
