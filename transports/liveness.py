"""The state of one end of a transport: open or ended, and which peers are lost. The first reason is kept and raised.

Also the range checks of ranks and channels.
"""

from transports.errors import PeerLost, TransportError

CHANNELS = 16384


class EndState:
    """Whether this end is open, and which peers are lost, in a world of this size.

    Attributes:
        end: the error that ended this end; None while it is open.
        lost: the error for each lost peer.
    """

    def __init__(self, world_size: int):
        self._world_size = world_size
        self.end: TransportError | None = None
        self.lost: dict[int, PeerLost] = {}

    def finish(self, error: TransportError) -> bool:
        """End with this reason. Returns False if this end had already ended; the first reason stays."""
        first = self.end is None
        self.end = self.end or error
        return first

    def lose(self, error: PeerLost) -> None:
        """Record that a peer is lost; the first reason is kept."""
        self.lost.setdefault(error.rank, error)

    def check(self, peer: int | None, channel: int = 0) -> None:
        """Check that this end may receive from this peer (None: any) on this channel.

        Raises:
            TransportError: this end has ended; the error is the reason.
            ValueError: no such rank or channel.
        """
        if self.end is not None:
            raise self.end.with_traceback(None)
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
