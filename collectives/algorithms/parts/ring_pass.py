"""The ring algorithm: reduce-scatter, all-gather, or both. A piece is forwarded as soon as it is reduced.

With n ranks in positions p = 0 .. n-1, the rank at p processes the segments v(t) = p - 1 - t (mod n) one after
another: at step t it sends v(t) to the next rank and receives v(t + 1) from the previous one.

    t            0     1    ...   n-2  |  n-1    n    ...   2n-3
    sends       p-1   p-2   ...   p+1  |   p    p-1   ...   p+2
    receives    p-2   p-3   ...    p   |  p-1   p-2   ...   p+1
                reduce into it         |  keep as it is

After t = n-2 segment p is complete at p: the left half is a reduce-scatter, the right one an all-gather, both are an
all-reduce. The segment received at t is the one sent at t + 1. So the pieces of all steps form one stream, and a piece
may be sent as soon as the same piece of the previous step has been received.

At each step only one rank reduces a segment, so all ranks end with the same bits.

Source: Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", sections 3 and 4.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from collectives.arrays import Range, Vector
from collectives.group import Communicator
from collectives.group.concurrency import run_both
from collectives.reduction import Reduction
from transports import Nursery


@dataclass(frozen=True, slots=True)
class RingPass:
    """One rank's part in one ring.

    Args:
        group: the ring consists of the ranks of this group.
        vector: the array; of the same length on every rank.
        segments: for each position its elements of the array; the same on every rank.
        stride: distance to the next rank of the ring; has no common divisor with the size of the group.
    """

    group: Communicator
    vector: Vector
    segments: Sequence[Range]
    stride: int = 1

    @property
    def position(self) -> int:
        return self.group.rank * pow(self.stride, -1, self.group.size) % self.group.size

    @property
    def _next_rank(self) -> int:
        return (self.group.rank + self.stride) % self.group.size

    @property
    def _previous_rank(self) -> int:
        return (self.group.rank - self.stride) % self.group.size

    async def reduce_scatter(self, reduction: Reduction) -> None:
        """Run the left half: segment `position` is complete here, the other segments hold partial sums."""
        await self._run(0, self.group.size - 1, reduction)

    async def all_gather(self) -> None:
        """Run the right half: all ranks receive segment `position` of every rank."""
        await self._run(self.group.size - 1, 2 * (self.group.size - 1))

    async def all_reduce(self, reduction: Reduction) -> None:
        """Run both halves; the second one begins before the first has ended."""
        await self._run(0, 2 * (self.group.size - 1), reduction)

    async def _run(self, start: int, stop: int, reduction: Reduction | None = None) -> None:
        """Run the steps from `start` to `stop`; a reduction is for those of the left half."""
        if start == stop:
            return
        ready_pieces = asyncio.Semaphore(sum(1 for _ in self._pieces(start, start + 1)))
        await run_both(self._send(start, stop, ready_pieces), self._receive(stop, reduction, ready_pieces))

    def _pieces(self, start: int, stop: int) -> Iterator[Range]:
        """The pieces of the segments v(start) .. v(stop - 1)."""
        size, position = self.group.size, self.position
        for step in range(start, stop):
            yield from self.group.workspace.pieces(self.vector, self.segments[(position - 1 - step) % size])

    async def _send(self, start: int, stop: int, ready_pieces: asyncio.Semaphore) -> None:
        pieces = self._pieces(start, stop)
        ahead = self.group.workspace.ahead
        one_by_one = islice(pieces, 1) if ahead else pieces
        for low, high in one_by_one:
            await ready_pieces.acquire()
            await self.group.send(self._next_rank, self.vector.bytes(low, high))
        if ahead:
            await self._send_ahead(pieces, ready_pieces)
        await self.group.send_fingerprint(self._next_rank)  # if all segments that were sent are empty

    async def _send_ahead(self, pieces: Iterator[Range], ready_pieces: asyncio.Semaphore) -> None:
        """Send each piece as soon as it is ready; of those sent, at most the bytes of the array have not arrived."""
        await asyncio.sleep(0)  # so that this is a task of its own, see `run_both`
        async with Nursery() as tasks:
            for low, high in pieces:
                await ready_pieces.acquire()
                tasks.create_task(self.group.send(self._next_rank, self.vector.bytes(low, high)))

    async def _receive(self, stop: int, reduction: Reduction | None, ready_pieces: asyncio.Semaphore) -> None:
        half = self.group.size - 1
        if reduction is not None:
            for step in range(1, half + 1):
                await self._reduce(step, reduction, ready_pieces)
        for low, high in self._pieces(half + 1, stop + 1):
            await self.group.receive(self._previous_rank, self.vector.bytes(low, high))
            ready_pieces.release()
        await self.group.check_fingerprint(self._previous_rank)

    async def _reduce(self, step: int, reduction: Reduction, ready_pieces: asyncio.Semaphore) -> None:
        """Reduce the received v(step) into the same segment here; finish the last segment piece by piece."""
        group = self.group
        vector = self.vector
        is_last = step == self.group.size - 1
        longest = max(high - low for low, high in self.segments)
        scratch = group.workspace.scratch(vector, longest, self.stride)
        for low, high in self._pieces(step, step + 1):
            await group.receive(self._previous_rank, scratch.bytes(0, high - low))
            reduction.into(vector, (low, high), scratch)
            if is_last:
                reduction.finish(vector.elements[low:high], group.size)
            ready_pieces.release()
