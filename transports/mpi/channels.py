"""Bare buffers over MPI: tag = channel. A buffer belongs to the caller or to MPI, never to both at once.

So a cancelled receive returns only when MPI no longer uses its memory; a buffer that arrived meanwhile is kept for the
next receive. MPI gets one receive of a peer and channel at a time. If a second receive were posted and the first
then cancelled, MPI could already have given the second the wrong buffer. Buffers from each peer are counted, because a
closing peer reports how many it sent.
"""

import asyncio
from collections import Counter, defaultdict, deque
from contextlib import suppress
from functools import partial
from typing import Any

from mpi4py import MPI

from transports.errors import PeerLost, SizeMismatch, TransportError
from transports.mpi.progress import ProgressEngine
from transports.mpi.requests import SEND_TEST_S, Truncated, outcome_now, start_request

MIN_BANDWIDTH = 5e9
"""Bytes a second between ranks even on a slow machine; a sender does not nap for nbytes / MIN_BANDWIDTH seconds."""


class MpiChannels:
    """This rank's bare buffers on one communicator.

    Args:
        max_count: the largest count given to MPI, in bytes, below 2 GiB.
    """

    def __init__(self, comm: MPI.Comm, engine: ProgressEngine, max_count: int):
        self._comm, self._engine, self._max_count = comm, engine, max_count
        self.sent: Counter[int] = Counter()
        self._received_count: Counter[int] = Counter()
        self._announced: dict[int, int] = {}
        self._open_requests: defaultdict[int, list[MPI.Request]] = defaultdict(list)
        self._kept_buffers: defaultdict[tuple[int, int], deque[tuple[bytes, int | None]]] = defaultdict(deque)
        self._turns: defaultdict[tuple[int, int], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ended_by: TransportError | None = None

    async def send(self, peer: int, channel: int, data: memoryview) -> None:
        """Send a buffer. Cancelled: MPI still reads the memory until the peer has received it."""
        request = start_request(self._comm.Isend, data, peer, channel, self._max_count)
        self.sent[peer] += 1
        test = partial(outcome_now, request)
        outcome = self._engine.spin_until(test, SEND_TEST_S)
        if outcome is None:
            await self._engine.test_while(request, test, data.nbytes / MIN_BANDWIDTH)
        elif isinstance(outcome, Exception):
            raise outcome

    async def receive(self, peer: int, channel: int, data: memoryview) -> None:
        """Fill `data` with the next buffer from this peer on this channel, after the earlier receives."""
        async with self._turns[peer, channel]:
            if self._ended_by is not None:
                raise self._ended_by
            await self._receive(peer, channel, data)

    async def _receive(self, peer: int, channel: int, data: memoryview) -> None:
        if kept_buffers := self._kept_buffers.get((peer, channel)):
            prefix, nbytes = kept_buffers.popleft()
            data[: len(prefix)] = prefix[: data.nbytes]
            return self._check_size(peer, channel, data, nbytes)
        if self._all_received(peer):
            raise PeerLost(peer, "it closed")
        request = start_request(self._comm.Irecv, data, peer, channel, self._max_count)
        outcome = self._engine.spin_until(partial(outcome_now, request)) or await self._outcome(
            request, peer, channel, data
        )
        if isinstance(outcome, MPI.Status) and outcome.Is_cancelled():
            raise self._ended_by or PeerLost(peer, "it closed")
        self._count(peer)
        if isinstance(outcome, Truncated):
            self._check_size(peer, channel, data, None)
        if isinstance(outcome, Exception):
            raise outcome
        self._check_size(peer, channel, data, outcome.Get_elements(MPI.BYTE))

    def fail_beyond(self, peer: int, count: int) -> None:
        """The peer closed after sending `count` buffers in total: fail the receives beyond that count."""
        self._announced[peer] = count
        self._count(peer, 0)

    def end(self, error: TransportError) -> None:
        """Fail all open receives with this error."""
        self._ended_by = self._ended_by or error
        for requests in self._open_requests.values():
            _cancel(requests)

    def drain(self) -> bool:
        """Receive and drop the remaining buffers of closed peers. Returns whether all have arrived."""
        for peer in self._announced:
            while not self._all_received(peer) and self._drain_next(peer):
                pass
        return all(self._all_received(peer) for peer in self._announced)

    def _drain_next(self, peer: int) -> bool:
        status = MPI.Status()
        message = self._comm.Improbe(peer, MPI.ANY_TAG, status)
        if message is None:
            return False
        request = start_request(
            _matched(message), memoryview(bytearray(status.Get_elements(MPI.BYTE))), peer, 0, self._max_count
        )
        self._engine.watch(request, lambda outcome: None)
        self._count(peer)
        return True

    async def _outcome(self, request: MPI.Request, peer: int, channel: int, data: memoryview) -> Any:
        outcomes: list[Any] = []
        future = self._engine.wait(request, callback=outcomes.append, urgent=True)
        self._open_requests[peer].append(request)
        try:
            return await future
        except TransportError as error:
            return error
        except asyncio.CancelledError:
            _cancel([request])
            while not outcomes:
                with suppress(asyncio.CancelledError):
                    await self._engine.next_poll()
            self._keep(outcomes[0], peer, channel, data)
            raise
        finally:
            self._open_requests[peer].remove(request)

    def _keep(self, outcome: Any, peer: int, channel: int, data: memoryview) -> None:
        """Keep the bytes that MPI had already received, perhaps truncated, for the next receive."""
        if isinstance(outcome, Truncated):
            self._kept_buffers[peer, channel].append((bytes(data), None))
        elif isinstance(outcome, MPI.Status) and not outcome.Is_cancelled():
            nbytes = outcome.Get_elements(MPI.BYTE)
            self._kept_buffers[peer, channel].append((bytes(data[:nbytes]), nbytes))
        else:
            return
        self._count(peer)

    def _count(self, peer: int, count: int = 1) -> None:
        self._received_count[peer] += count
        if self._all_received(peer):
            _cancel(self._open_requests[peer])

    def _all_received(self, peer: int) -> bool:
        return peer in self._announced and self._received_count[peer] >= self._announced[peer]

    def _check_size(self, peer: int, channel: int, data: memoryview, nbytes: int | None) -> None:
        if nbytes != data.nbytes:
            raise SizeMismatch(peer, channel, data.nbytes, nbytes, data[:nbytes])


def _matched(message: MPI.Message) -> Any:
    return lambda data, peer, tag: message.Irecv(data)


def _cancel(requests: list[MPI.Request]) -> None:
    for request in requests:
        if request != MPI.REQUEST_NULL:
            request.Cancel()
