"""Bodies that wait at their sender. The one rule: a body moves when its receiver asks, straight to where it belongs.

A synchronous send (Issend) is done only when it is matched. So a tag is never borne by two bodies at once, however long
the first is held, and memory is bounded: nothing large lies in MPI's own buffers.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from mpi4py import MPI

from transports._blocks import Block
from transports._errors import TransportError
from transports._landing import landing
from transports._mpi_requests import Tags, start
from transports._poller import Poller
from transports._wire import Layout


class Bodies:
    """Held bodies on one communicator.

    Args:
        piece: bytes that MPI is told about at once, below 2 GiB.
    """

    def __init__(self, comm: MPI.Comm, poller: Poller, piece: int):
        self._comm, self._poller, self._piece = comm, poller, piece
        self._tags = Tags()

    def hold(self, peer: int, blocks: Sequence[Block], announce: Callable[[int], asyncio.Future]) -> asyncio.Future:
        """Hold the blocks for the peer under a tag that `announce` tells it; done when the peer has them all."""
        tag = self._tags.take(peer)
        try:
            announced = announce(tag)
        except TransportError:
            self._tags.release(peer, tag)
            raise
        *firsts, last = [
            start(self._comm.Issend, block.data, peer, tag, self._piece) for block in blocks if block.nbytes
        ]
        # Bodies of one tag are matched in order: when the last one is, the tag is free.
        freed = self._poller.wait(last, lambda outcome: self._tags.release(peer, tag))
        return asyncio.gather(announced, *map(self._poller.wait, firsts), freed)

    def fetch(self, peer: int, tag: int, blocks: Sequence[Block]) -> asyncio.Future:
        """Fill the blocks with the body held under this tag; cancelling the future does not stop it."""
        if self._poller.failure is not None:
            raise self._poller.failure.with_traceback(None)
        datas = [block.data for block in blocks if block.nbytes]
        requests = [start(self._comm.Irecv, data, peer, tag, self._piece) for data in datas]
        return asyncio.gather(*map(self._poller.wait, requests))

    async def fetched(self, peer: int, tag: int, blocks: Sequence[Block], late: Callable[[], None]) -> None:
        """Fetch and wait; when cancelled, wait on until MPI lets go of the memory, then call `late`."""
        coming = self.fetch(peer, tag, blocks)
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
        """Let the peer go of a body that nobody wants."""
        self.fetch(peer, tag, landing(layouts)).add_done_callback(asyncio.Future.exception)
