"""Large bodies over MPI: held at the sender until the receiver fetches them, straight into the receiver's arrays.

A synchronous send (Issend) is done only when a receive matches it. So two bodies never bear one tag, however long the
first is held, and memory is bounded: nothing large lies in MPI's own buffers.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from mpi4py import MPI

from transports.errors import TransportError
from transports.mpi.frames import Frames
from transports.mpi.node import NodePeers
from transports.mpi.progress import ProgressEngine
from transports.mpi.requests import Tags, start
from transports.wire.arrays import Block, Layout, landing


class Bodies:
    """Held bodies on one communicator.

    Args:
        piece: bytes that MPI is told about at once, below 2 GiB.
        frames: sends the header to the peer.
        node_peers: rings the doorbell of a peer once a body of its has been fetched.
    """

    def __init__(self, comm: MPI.Comm, progress: ProgressEngine, piece: int, frames: Frames, node_peers: NodePeers):
        self._comm, self._progress, self._piece = comm, progress, piece
        self._frames, self._node_peers = frames, node_peers
        self._tags = Tags()

    def hold(self, peer: int, blocks: Sequence[Block], offer: Callable[[int], bytes]) -> asyncio.Future:
        """Hold the blocks for the peer under a tag that `offer` frames for it; done when the peer has them all."""
        tag = self._tags.take(peer)
        try:
            frame = offer(tag)
        except TransportError:
            self._tags.release(peer, tag)
            raise
        datas = [block.data for block in blocks if block.nbytes]
        requests = [start(self._comm.Issend, data, peer, tag, self._piece) for data in datas]
        self._frames.start(peer, frame)
        return self._progress.wait(*requests, done=lambda outcome: self._tags.release(peer, tag))

    def fetch(self, peer: int, tag: int, blocks: Sequence[Block]) -> list[MPI.Request]:
        """Start to fill the blocks with the body held under this tag; the requests are the caller's to watch."""
        if self._progress.failure is not None:
            raise self._progress.failure.with_traceback(None)
        datas = [block.data for block in blocks if block.nbytes]
        return [start(self._comm.Irecv, data, peer, tag, self._piece) for data in datas]

    async def fetched(self, peer: int, tag: int, blocks: Sequence[Block], late: Callable[[], None]) -> None:
        """Fetch and wait; when cancelled, wait on until MPI lets go of the memory, then call `late`."""
        coming = self._progress.wait(*self.fetch(peer, tag, blocks), done=lambda outcome: self._node_peers.ring(peer))
        self._progress.poll_for(coming.done)
        try:
            await asyncio.shield(coming)
        except asyncio.CancelledError:
            while not coming.done():
                with suppress(asyncio.CancelledError, TransportError):
                    await asyncio.shield(coming)
            if coming.exception() is None:
                late()
            raise

    def discard(self, peer: int, tag: int, layouts: Sequence[Layout]) -> None:
        """Fetch and throw away a body that no receive will ask for, so that its sender is done."""
        self._progress.watch_all(self.fetch(peer, tag, landing(layouts)), lambda outcome: None)
