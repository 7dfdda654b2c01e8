"""The acceptor: a listening socket, and a handshake with each connection. `run_handshake` runs one, at either end.

A connection that does not prove the key in time is dropped. An unknown caller costs a bounded time and a few hundred
bytes, and does not delay ranks: when too many connections are in their handshake, the one that has been silent longest
is dropped, or the oldest if all have sent something.
"""

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic

from transports.aio.nursery import Nursery
from transports.errors import TransportError
from transports.stream.handshake import H, Handshake, Identity, P, Verdict, accepting
from transports.stream.sockets import HANDSHAKE_TIMEOUT_S, accept, read_exactly, set_options

MAX_PENDING = 256


async def run_handshake_in_time(
    sock: socket.socket, handshake: Handshake[H], on_read: Callable[[], None] = lambda: None
) -> H:
    """`run_handshake` within `HANDSHAKE_TIMEOUT_S` seconds.

    Raises:
        TimeoutError: the other side did not send in time. Else as `run_handshake`.
    """
    try:
        async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
            return await run_handshake(sock, handshake, on_read)
    except TimeoutError as error:
        raise TimeoutError(f"silent for {HANDSHAKE_TIMEOUT_S:g} s") from error


async def run_handshake(sock: socket.socket, handshake: Handshake[H], on_read: Callable[[], None] = lambda: None) -> H:
    """Run a handshake on a socket, for as long as its caller waits. Returns the hello of the other end.

    Args:
        on_read: called after each read.
    Raises:
        ConnectionError: the other end closed the connection. Else as the handshake.
    """
    loop = asyncio.get_running_loop()
    try:
        step = next(handshake)
        while True:
            if isinstance(step, int):
                data = await read_exactly(sock, step)
                on_read()
                step = handshake.send(data)
            else:
                await loop.sock_sendall(sock, step)
                step = next(handshake)
    except StopIteration as end:
        hello: H = end.value
        return hello


class AcceptorOwner(ABC, Generic[H]):
    """The owner of an acceptor: it decides which callers are admitted, and takes their sockets."""

    @abstractmethod
    def admit(self, hello: H) -> Verdict:
        """Decide on a caller that has proved the key and means this end."""

    @abstractmethod
    async def on_admitted(self, hello: H, sock: socket.socket) -> None:
        """Take the socket of an admitted caller; cancelled when the acceptor closes."""

    def on_rejected(self, error: Exception) -> None:
        """A caller was not admitted: the error of its handshake, also if it closed the connection or timed out."""

    def on_error(self, error: Exception) -> None:
        """An unexpected error. If this raises it, the acceptor ends, and raises it when it closes."""
        raise error


class Acceptor(Generic[H, P]):
    """An async context: while it is open, handshakes run concurrently; on exit, the listener is closed.

    Args:
        listener: owned by the acceptor from now on.
    """

    def __init__(self, listener: socket.socket, me: Identity[H, P], owner: AcceptorOwner[H]):
        self._listener, self._me, self._owner = listener, me, owner
        self._before_first_byte: dict[socket.socket, asyncio.Task[None]] = {}
        self._in_handshake: dict[socket.socket, asyncio.Task[None]] = {}

    async def __aenter__(self) -> "Acceptor[H, P]":
        self._serving = asyncio.create_task(self._report_errors(self._serve))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._serving.cancel()
        await asyncio.wait([self._serving])
        for sock in (self._listener, *self._before_first_byte, *self._in_handshake):
            sock.close()
        if not self._serving.cancelled():
            self._serving.result()

    async def _report_errors(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Report an unexpected error to the owner at once, so that it neither ends the acceptor nor stays unseen."""
        try:
            await work(*arguments)
        except Exception as error:
            self._owner.on_error(error)

    async def _serve(self) -> None:
        async with Nursery() as callers:
            while True:
                sock = await accept(self._listener)
                if len(self._before_first_byte) + len(self._in_handshake) >= MAX_PENDING:
                    next(iter((self._before_first_byte or self._in_handshake).values())).cancel()
                self._before_first_byte[sock] = callers.create_task(self._report_errors(self._handshake, sock))

    async def _handshake(self, sock: socket.socket) -> None:
        try:
            set_options(sock)
            hello = await run_handshake_in_time(
                sock, accepting(self._me, self._owner.admit), partial(self._on_read, sock)
            )
        except (TransportError, OSError) as error:
            sock.close()
            return self._owner.on_rejected(error)
        except BaseException:
            sock.close()
            raise
        finally:
            self._before_first_byte.pop(sock, None)
            self._in_handshake.pop(sock, None)
        try:
            await self._owner.on_admitted(hello, sock)
        except Exception:
            sock.close()
            raise

    def _on_read(self, sock: socket.socket) -> None:
        if sock in self._before_first_byte:
            self._in_handshake[sock] = self._before_first_byte.pop(sock)
