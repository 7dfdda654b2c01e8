"""Large bodies over MPI: the sender holds them until the receiver fetches them directly into its arrays.

A synchronous send (Issend) completes only when a receive matches it. So a tag is not reused while its body is held, and
memory is bounded: MPI buffers no large body.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from transports.errors import TransportError
from transports.mpi.node import NodePeers
from transports.mpi.progress import ProgressEngine
from transports.mpi.requests import start
from transports.numbers import Numbers
from transports.wire.arrays import Block, Layout, fill, landing
from transports.wire.frames import Header

TAGS = 32768  # the number that MPI guarantees (MPI 4.1, section 9.1.2: the upper bound is at least 32767)


@dataclass(slots=True)
class ReceivedFrame:
    """A received frame of a message: its header, and its body or the tag to fetch the body with.

    Args:
        tag: the tag under which the sender holds the body.
        blocks: the body; None while the sender holds it.
    """

    header: Header
    tag: int
    blocks: tuple[Block, ...] | None

    def land(self, into: Sequence[Block] | None) -> tuple[Block, ...]:
        """The blocks for the receiver; not yet filled if the sender still holds the body."""
        if self.blocks is None:
            return landing(self.header.layouts, into)
        if into is None:
            return self.blocks
        blocks = landing(self.header.layouts, into)
        fill(blocks, self.blocks)
        return blocks


class Bodies:
    """Held bodies on one communicator.

    Args:
        piece: the largest count given to MPI, in bytes, below 2 GiB.
        node_peers: rings the peer's doorbell after its body has been fetched.
    """

    def __init__(self, comm: MPI.Comm, progress: ProgressEngine, piece: int, node_peers: NodePeers):
        self._comm, self._progress, self._piece, self._node_peers = comm, progress, piece, node_peers
        self._tags = [Numbers(f"messages held for rank {peer}", TAGS) for peer in range(comm.size)]

    def hold(self, peer: int, blocks: Sequence[Block], announce: Callable[[int], None]) -> asyncio.Future[Any]:
        """Hold the blocks for the peer under a new tag; `announce(tag)` sends the frame that offers them.

        The future is done when the peer has received all blocks.
        """
        tag = self._tags[peer].take()
        try:
            announce(tag)
        except TransportError:
            self._tags[peer].release(tag)
            raise
        datas = [block.data for block in blocks if block.nbytes]
        requests = [start(self._comm.Issend, data, peer, tag, self._piece) for data in datas]
        return self._progress.wait(*requests, done=lambda outcome: self._tags[peer].release(tag))

    def fetch(self, peer: int, tag: int, blocks: Sequence[Block]) -> list[MPI.Request]:
        """Start to fill the blocks with the body held under this tag; the caller watches the returned requests."""
        if self._progress.failure is not None:
            raise self._progress.failure.with_traceback(None)
        datas = [block.data for block in blocks if block.nbytes]
        return [start(self._comm.Irecv, data, peer, tag, self._piece) for data in datas]

    async def fetched(self, peer: int, tag: int, blocks: Sequence[Block], late: Callable[[], None]) -> None:
        """Fetch and wait. Cancelled: wait until MPI no longer uses the memory, then call `late` if the body came."""
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
        """Fetch a body that no receive will request, and drop it, so that its sender can finish."""
        self._progress.watch_all(self.fetch(peer, tag, landing(layouts)), lambda outcome: None)
