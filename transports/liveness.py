"""The state of one end of a transport: open or ended, and which peers are lost. The first reason is kept and raised.

Also checks that a peer and a channel are in range; the error names the range.
"""

from transports.errors import PeerLost, TransportError

CHANNELS = 16384


class EndState:
    """Whether this end is open, and which peers are lost, in a world of this size.

    Attributes:
        end: why this end neither sends nor receives any more, if that is so.
        lost: for each peer that is gone, why.
    """

    def __init__(self, world_size: int):
        self._world_size = world_size
        self.end: TransportError | None = None
        self.lost: dict[int, PeerLost] = {}

    def finish(self, error: TransportError) -> bool:
        """End with this reason; False if it had ended already, with another."""
        first = self.end is None
        self.end = self.end or error
        return first

    def lose(self, error: PeerLost) -> None:
        """Note that a peer is lost; the first reason is kept."""
        self.lost.setdefault(error.rank, error)

    def check(self, peer: int | None, channel: int = 0) -> None:
        """Check that this end may receive from this peer (None: any) on this channel.

        Raises:
            TransportError: why this end has ended.
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
