"""Large bodies over MPI: the sender holds them until the receiver fetches them directly into its arrays.

A synchronous send (Issend) completes only when a receive matches it. So a tag is not reused while its body is held, and
memory is bounded: MPI buffers no large body.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from transports.mpi.node import NodePeers
from transports.mpi.progress import ProgressEngine
from transports.mpi.requests import start_request
from transports.wire.arrays import ArrayType, Block, blocks_for
from transports.wire.number_pool import NumberPool

TAGS = 32768  # the number that MPI guarantees (MPI 4.1, section 9.1.2: the upper bound is at least 32767)


class Bodies:
    """Held bodies on one communicator.

    Args:
        max_count: the largest count given to MPI, in bytes, below 2 GiB.
        node_peers: rings the peer's doorbell after its body has been fetched.
    """

    def __init__(self, comm: MPI.Comm, engine: ProgressEngine, max_count: int, node_peers: NodePeers):
        self._comm = comm
        self._engine = engine
        self._max_count = max_count
        self._node_peers = node_peers
        self._tags = [NumberPool(f"messages held for rank {peer}", TAGS) for peer in range(comm.size)]

    def reserve_tag(self, peer: int) -> int:
        """Reserve a tag for a body to this peer. Raises TransportError: all are in use."""
        return self._tags[peer].allocate()

    def hold(self, peer: int, tag: int, blocks: Sequence[Block]) -> asyncio.Future[Any]:
        """Hold the blocks for the peer under a reserved tag. The future is done when the peer has received them all."""
        requests = self._start(self._comm.Issend, peer, tag, blocks)
        return self._engine.wait(*requests, callback=lambda outcome: self._tags[peer].release(tag))

    def fetch(self, peer: int, tag: int, blocks: Sequence[Block]) -> asyncio.Future[Any]:
        """Fill the blocks with the body held under this tag. The future is done when MPI no longer uses their memory.

        Raises:
            TransportError: this rank has ended.
        """
        requests = self.start_fetch(peer, tag, blocks)
        return self._engine.wait(*requests, callback=lambda outcome: self._node_peers.ring(peer))

    def start_fetch(self, peer: int, tag: int, blocks: Sequence[Block]) -> list[MPI.Request]:
        """As `fetch`; the caller watches the returned requests."""
        if self._engine.failure is not None:
            raise self._engine.failure.with_traceback(None)
        return self._start(self._comm.Irecv, peer, tag, blocks)

    def discard(self, peer: int, tag: int, layouts: Sequence[ArrayType]) -> None:
        """Fetch a body that no receive will request, and drop it, so that its sender can finish."""
        self._engine.watch_all(self.start_fetch(peer, tag, blocks_for(layouts)), lambda outcome: None)

    def _start(
        self, operation: Callable[..., MPI.Request], peer: int, tag: int, blocks: Sequence[Block]
    ) -> list[MPI.Request]:
        return [start_request(operation, block.data, peer, tag, self._max_count) for block in blocks if block.nbytes]
