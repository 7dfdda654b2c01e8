"""The ways a body can go from one rank to another over MPI and back: mpi4py's own calls, bare buffers, messages.

Every way sends the same bytes and ends with them in memory that `came` shows, so that a benchmark that times a way can
also check its bytes.
"""

import time
from abc import ABC, abstractmethod

import numpy as np
from mpi4py import MPI

from transports import Transport

READ_FROM = 64 << 10
"""Bytes from which on the receiver reads what came: a body in shared memory has not been touched until then."""


def read(body: np.ndarray) -> None:
    """Read every byte of a large body once, as a stage that computes with it does."""
    if body.nbytes >= READ_FROM:
        body.max()


class Road(ABC):
    """One way between this rank and its peer.

    Args:
        body: the bytes this rank sends, flat.

    Attributes:
        name: what the way is called in tables.
        came: the bytes received last.
    """

    name = ""

    def __init__(self, peer: int, body: np.ndarray):
        self.peer, self.body, self.came = peer, body, np.zeros(0, np.uint8)

    @abstractmethod
    async def ping_pong(self, first: bool, turns: int) -> float:
        """Send there and back so many times, reading what comes; returns the mean seconds of one way."""


class Raw(Road):
    """Blocking `Send` and `Recv` of mpi4py: nothing else runs on a rank meanwhile.

    Args:
        comm: a communicator of its own.
    """

    name = "raw"

    def __init__(self, peer: int, body: np.ndarray, comm: MPI.Comm):
        super().__init__(peer, body)
        self._comm, self.came = comm, np.zeros_like(body)

    async def ping_pong(self, first: bool, turns: int) -> float:
        send, receive = self._comm.Send, self._comm.Recv
        outgoing, incoming = [self.body, MPI.BYTE], [self.came, MPI.BYTE]
        start = time.perf_counter()
        for _ in range(turns):
            if first:
                send(outgoing, self.peer)
                receive(incoming, self.peer)
                read(self.came)
            else:
                receive(incoming, self.peer)
                read(self.came)
                send(outgoing, self.peer)
        return (time.perf_counter() - start) / turns / 2


class Buffers(Road):
    """Bare bytes on a channel of the transport, as collectives send them."""

    name = "buffer"

    def __init__(self, peer: int, body: np.ndarray, transport: Transport, channel: int):
        super().__init__(peer, body)
        self._transport, self._channel, self.came = transport, channel, np.zeros_like(body)

    async def ping_pong(self, first: bool, turns: int) -> float:
        send, receive = self._transport.send_buffer, self._transport.receive_buffer
        peer, channel, outgoing, incoming = self.peer, self._channel, memoryview(self.body), memoryview(self.came)
        start = time.perf_counter()
        for _ in range(turns):
            if first:
                await send(peer, channel, outgoing)
                await receive(peer, channel, incoming)
                read(self.came)
            else:
                await receive(peer, channel, incoming)
                read(self.came)
                await send(peer, channel, outgoing)
        return (time.perf_counter() - start) / turns / 2


class Messages(Road):
    """Addressed messages through the mailbox, into memory that the transport takes for them, as schedules send them."""

    name = "message"

    def __init__(self, peer: int, body: np.ndarray, transport: Transport):
        super().__init__(peer, body)
        self._transport = transport

    async def ping_pong(self, first: bool, turns: int) -> float:
        send, receive, peer, body = self._transport.send, self._transport.receive, self.peer, self.body
        start = time.perf_counter()
        for turn in range(turns):
            if first:
                await send(peer, ("there", 7, turn), body)
                frame = await receive(peer, ("back", 7, turn))
                read(frame.blocks[0].numpy())
            else:
                frame = await receive(peer, ("there", 7, turn))
                read(frame.blocks[0].numpy())
                await send(peer, ("back", 7, turn), body)
        seconds = (time.perf_counter() - start) / turns / 2
        self.came = frame.blocks[0].numpy()
        return seconds
