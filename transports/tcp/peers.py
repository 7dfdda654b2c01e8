"""All peers of one rank over TCP: the messages that they sent, which of them are lost, and how this rank ends."""

import asyncio
import socket
from collections.abc import Collection, Mapping

from transports.errors import PeerAborted, PeerLost, TransportError
from transports.inboxes import Inboxes
from transports.stream.connection import Ending
from transports.stream.incoming import IncomingBuffer, IncomingMessage
from transports.tcp.peer import PeerOwner, TcpPeer, Views


class TcpPeers(PeerOwner):
    """The peers of one rank, by rank.

    Args:
        sockets: one connected, non-blocking, authenticated socket for each other rank; owned from now on.
        limit: bytes of unexpected messages that are kept here from each peer; equal on all ranks.
        same_node_ranks: the ranks on this machine, if each has a core of its own.
    Attributes:
        inboxes: what the peers sent, whether this rank is open, and which peers are lost.
    """

    def __init__(self, sockets: Mapping[int, socket.socket], limit: int, same_node_ranks: Collection[int]):
        self.inboxes = Inboxes[IncomingMessage, IncomingBuffer](len(sockets) + 1)
        self._peers = {
            rank: TcpPeer(rank, sock, self, limit, rank in same_node_ranks) for rank, sock in sockets.items()
        }

    def __getitem__(self, rank: int) -> TcpPeer:
        return self._peers[rank]

    def on_abort(self, rank: int, reason: str) -> None:
        self.end(Ending.STOP_RECEIVING, PeerAborted(rank, reason))
        self.on_lost(PeerLost(rank, "it aborted"))

    def on_lost(self, error: PeerLost) -> None:
        """Close the connection with the lost rank; complete messages that came before stay available."""
        self.inboxes.lose(error)
        self._peers[error.rank].end(Ending.DROP, error)

    def end(self, ending: Ending, error: TransportError, last: Views = ()) -> None:
        """Fail every operation here from now on; all connections end in this way.

        Args:
            error: the reason; if this rank has ended before, that reason is kept.
            last: as for `FrameConnection.end`.
        """
        error = self.inboxes.end(error)
        for peer in self._peers.values():
            peer.end(ending, error, last)

    async def wait_closed(self, seconds: float) -> None:
        """After a last frame, wait until every peer has received everything; see `FrameConnection.wait_closed`."""
        await asyncio.gather(*(peer.connection.wait_closed(seconds) for peer in self._peers.values()))
