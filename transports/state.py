"""The state of every transport: its traffic, whether it is open, and which peers are lost."""

from collections import Counter
from dataclasses import dataclass, field

from transports.errors import PeerLost, TransportError

CHANNELS = 16384
ABORT_S, ABORT_CHARACTERS = 1.0, 4096
"""Seconds for a failed rank to send its reason to the others, and the characters of the reason that are sent."""


@dataclass(slots=True)
class Traffic:
    """Payload bytes and messages that this rank has sent and received; headers are not counted.

    Attributes:
        bytes_to: by peer, where there are any.
        object_bytes_sent: bytes sent of the exchanges of plain objects; `collectives.objects` counts them.
    """

    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    bytes_to: Counter[int] = field(default_factory=Counter)
    object_bytes_sent: int = 0

    def count_sent(self, peer: int, nbytes: int) -> None:
        """Count a message or buffer sent to this peer."""
        self.messages_sent += 1
        self.bytes_sent += nbytes
        if nbytes:
            self.bytes_to[peer] += nbytes

    def count_received(self, nbytes: int) -> None:
        self.messages_received += 1
        self.bytes_received += nbytes

    def take_back_sent(self, peer: int, nbytes: int, messages: int) -> None:
        """Take back counted bytes that are no payload, and the messages of nothing else."""
        self.messages_sent -= messages
        self.bytes_sent -= nbytes
        self.bytes_to[peer] -= nbytes
        if not self.bytes_to[peer]:
            del self.bytes_to[peer]

    def take_back_received(self, nbytes: int, messages: int) -> None:
        self.messages_received -= messages
        self.bytes_received -= nbytes


class TransportState:
    """Whether this end is open, and which peers are lost, in a world of this size. The first reason is kept and raised.

    Attributes:
        ended_by: the error that ended this end; None while it is open.
        lost: the error for each lost peer.
    """

    def __init__(self, world_size: int):
        self._world_size = world_size
        self.ended_by: TransportError | None = None
        self.lost: dict[int, PeerLost] = {}

    def end_with(self, error: TransportError) -> TransportError:
        """End with this reason. Returns the reason that is kept: the first."""
        self.ended_by = self.ended_by or error
        return self.ended_by

    def lose(self, error: PeerLost) -> None:
        """Record that a peer is lost; the first reason is kept."""
        self.lost.setdefault(error.rank, error)

    def check(self, peer: int | None, channel: int = 0) -> None:
        """Check that this end is open, and that such a rank (None: any) and channel exist.

        Whether the peer is lost is not checked.

        Raises:
            TransportError: this end has ended; the error is the reason.
            ValueError: no such rank or channel.
        """
        if self.ended_by is not None:
            raise self.ended_by.with_traceback(None)
        if not 0 <= channel < CHANNELS:
            raise ValueError(f"no such channel (channel: {channel}, channels: {CHANNELS}); they run from 0 up")
        if peer is not None and not 0 <= peer < self._world_size:
            size = self._world_size
            raise ValueError(f"no such rank (peer: {peer}, world size: {size}); ranks run from 0 to world size - 1")

    def check_sendable(self, peer: int, channel: int = 0) -> None:
        """As `check`, for sending, which needs a peer that is not lost.

        Raises:
            PeerLost: the peer is lost.
        """
        self.check(peer, channel)
        if peer in self.lost:
            raise self.lost[peer].with_traceback(None)
