"""All peers of one rank over TCP: the messages that they sent, which of them are lost, and how this rank ends."""

import asyncio
import socket
from collections.abc import Collection, Mapping

from transports.base import TransportState
from transports.errors import PeerAborted, PeerLost, TransportError
from transports.mailbox import Mailbox
from transports.stream.incoming import IncomingBuffer, IncomingMessage
from transports.tcp.peer import PeerOwner, TcpPeer, Views


class TcpPeers(PeerOwner):
    """The peers of one rank, by rank.

    Args:
        sockets: one connected, non-blocking, authenticated socket for each other rank; owned from now on.
        limit: bytes of unexpected messages that are kept here from each peer; equal on all ranks.
        near: the ranks on this machine, if each has a core of its own.
    Attributes:
        state: whether this rank is open, and which peers are lost.
    """

    def __init__(self, sockets: Mapping[int, socket.socket], limit: int, near: Collection[int]):
        world_size = len(sockets) + 1
        self.messages = Mailbox[IncomingMessage](world_size)
        self.buffers = Mailbox[IncomingBuffer](world_size)
        self.state = TransportState(world_size)
        self._peers = {rank: TcpPeer(rank, sock, self, limit, rank in near) for rank, sock in sockets.items()}

    def __getitem__(self, rank: int) -> TcpPeer:
        return self._peers[rank]

    def on_abort(self, rank: int, reason: str) -> None:
        self.end(PeerAborted(rank, reason))
        self.on_lost(PeerLost(rank, "it aborted"))

    def on_lost(self, error: PeerLost) -> None:
        """Close the connection with the lost rank; complete messages that came before stay available."""
        self.state.lose(error)
        self.messages.fail_peer(error.rank, error)
        self.buffers.fail_peer(error.rank, error)
        self._peers[error.rank].drop(error)

    def end(self, error: TransportError) -> TransportError:
        """Fail every operation here except the sends in progress. Returns the reason that is kept: the first."""
        error = self.state.end_with(error)
        self.messages.fail_all(error)
        self.buffers.fail_all(error)
        for peer in self._peers.values():
            peer.fail_incoming(error)
        return error

    def discard(self, error: TransportError) -> None:
        """Fail all sends that have not begun."""
        for peer in self._peers.values():
            peer.discard(error)

    def drop(self, error: TransportError) -> None:
        """Close all connections now, and fail everything that is being sent or received."""
        for peer in self._peers.values():
            peer.drop(error)

    async def close(self, last: Views, error: TransportError, seconds: float) -> None:
        """Send a last frame to every peer, and wait until it has received everything.

        Args:
            error: the error of frames that a peer no longer takes.
            seconds: as for `FrameConnection.wait_closed`.
        """
        for peer in self._peers.values():
            peer.farewell(last, error)
        await asyncio.gather(*(peer.connection.wait_closed(seconds) for peer in self._peers.values()))
