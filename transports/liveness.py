"""Where an end stands: open or ended, and with whom. The one rule: the first reason stays, and is what is raised.

Also says whether a peer and a channel can exist at all; a wrong one is named with its range.
"""

from transports.errors import PeerLost, TransportError

CHANNELS = 16384


class Standing:
    """One end's standing in a world of so many ranks.

    Attributes:
        end: why this end neither sends nor receives any more, if that is so.
        lost: for each peer that is gone, why.
    """

    def __init__(self, world_size: int):
        self._world_size = world_size
        self.end: TransportError | None = None
        self.lost: dict[int, PeerLost] = {}

    def finish(self, error: TransportError) -> bool:
        """End with this reason; False if the end had one already."""
        first = self.end is None
        self.end = self.end or error
        return first

    def lose(self, error: PeerLost) -> None:
        """Have lost a peer."""
        self.lost.setdefault(error.rank, error)

    def check(self, peer: int | None, channel: int = 0) -> None:
        """Return if one may receive from this peer (None: anybody) on this channel.

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
        """The same for sending, which also takes a peer that is still there.

        Raises:
            PeerLost: it is not.
        """
        self.check(peer, channel)
        if peer in self.lost:
            raise self.lost[peer].with_traceback(None)
