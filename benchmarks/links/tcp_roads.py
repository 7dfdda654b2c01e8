"""The roads by which bytes go from one rank to another over loopback: a bare socket, gloo, and ours twice.

A road is a send and a receive of a number of bytes that both ends know; nothing is timed here.
"""

import os
import socket
from abc import ABC, abstractmethod

import torch
from torch import distributed

from transports import Transport
from transports.stream.sockets import CACHED_BUFFER

Views = dict[str, memoryview]


class Road(ABC):
    """One way from this rank to its peer and back."""

    @abstractmethod
    async def send(self, view: memoryview) -> None:
        """Return when the memory may be reused."""

    @abstractmethod
    async def receive(self, view: memoryview) -> None:
        """Fill the memory."""

    def close(self) -> None:  # noqa: B027 (most have nothing to close)
        """No more will be sent."""


class Bare(Road):
    """A blocking socket, and two system calls a message: what the kernel itself can do.

    Args:
        sock: connected to the peer.
        tuned: with kernel buffers of the size that our transport asks for between ranks of one machine.
    """

    def __init__(self, sock: socket.socket, tuned: bool = False):
        self._sock = sock
        if tuned:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CACHED_BUFFER)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, CACHED_BUFFER)
        sock.setblocking(True)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @classmethod
    async def open(cls, transport: Transport, tuned: bool = False) -> "Bare":
        """Connect the two ranks; the transport carries the port."""
        if transport.rank == 0:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                await transport.send(1, ("port",), note=listener.getsockname()[1])
                return cls(listener.accept()[0], tuned)
        port = (await transport.receive(0, ("port",))).note
        return cls(socket.create_connection(("127.0.0.1", port)), tuned)

    async def send(self, view: memoryview) -> None:
        self._sock.sendall(view)

    async def receive(self, view: memoryview) -> None:
        while view.nbytes:
            view = view[self._sock.recv_into(view) :]

    def close(self) -> None:
        self._sock.close()


class Gloo(Road):
    """torch.distributed's point-to-point over gloo.

    Args:
        peer: the other rank of the process group.
    """

    def __init__(self, peer: int):
        self._peer = peer

    @classmethod
    def open(cls, peer: int, folder: str) -> "Gloo":
        """Meet the peer in a folder that both know."""
        join_gloo(folder)
        return cls(peer)

    async def send(self, view: memoryview) -> None:
        distributed.send(torch.frombuffer(view, dtype=torch.uint8), self._peer)

    async def receive(self, view: memoryview) -> None:
        distributed.recv(torch.frombuffer(view, dtype=torch.uint8), self._peer)

    def close(self) -> None:
        distributed.destroy_process_group()


class Buffers(Road):
    """Our bare buffers."""

    def __init__(self, transport: Transport):
        self._transport, self._peer = transport, 1 - transport.rank

    async def send(self, view: memoryview) -> None:
        await self._transport.send_buffer(self._peer, 1, view)

    async def receive(self, view: memoryview) -> None:
        await self._transport.receive_buffer(self._peer, 1, view)


class Messages(Road):
    """Our addressed messages, into memory of the receiver's."""

    def __init__(self, transport: Transport):
        self._transport, self._peer = transport, 1 - transport.rank

    async def send(self, view: memoryview) -> None:
        await self._transport.send(self._peer, ("message", 1), view)

    async def receive(self, view: memoryview) -> None:
        await self._transport.receive(self._peer, ("message", 1), [view])


def join_gloo(folder: str) -> None:
    """Join gloo's group of all ranks, over loopback."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    distributed.init_process_group("gloo", f"file://{folder}/gloo", rank=rank, world_size=size)
