"""The acceptor: a listening socket, and a handshake with each connection; and `connect`, the connecting side.

A connection that does not prove the key in time is dropped. An unknown caller costs a bounded time and a few hundred
bytes, and does not delay ranks: when too many connections are in their handshake, the one that has been silent longest
is dropped, or the oldest if all have sent something.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from transports.errors import RendezvousError, TransportError, WireError
from transports.nursery import Nursery
from transports.tcp.join.handshake import Dialogue, Hello, Identity, Verdict, accepting, connecting
from transports.tcp.sockets import SILENCE_S, Address, accept, dial, read_exactly, tune

STRANGERS = 256


async def converse(sock: socket.socket, dialogue: Dialogue, spoke: Callable[[], None] = lambda: None) -> Hello:
    """Run a handshake on a socket, within `SILENCE_S` seconds.

    Args:
        spoke: called after each read.
    Raises:
        TimeoutError: the other side did not send in time. ConnectionError: it closed the connection. Else as the
            dialogue.
    """
    loop, heard = asyncio.get_running_loop(), None
    async with asyncio.timeout(SILENCE_S):
        while True:
            try:
                step = dialogue.send(heard)
            except StopIteration as end:
                return end.value
            if isinstance(step, int):
                heard = await read_exactly(sock, step)
                spoke()
            else:
                heard = await loop.sock_sendall(sock, step)


async def connect(address: Address, me: Identity, peer: int) -> tuple[socket.socket, Hello]:
    """Connect to a rank and complete the handshake; the caller owns the socket.

    Raises:
        OSError: no process listens there. AuthenticationError, RendezvousError: refused, or no rank answers there.
    """
    sock = await dial(address)
    try:
        tune(sock)
        return sock, await converse(sock, connecting(me, peer))
    except (OSError, TimeoutError, WireError) as error:
        sock.close()
        seen = str(error) or f"silent for {SILENCE_S:g} s"
        raise RendezvousError(
            f"what listens at {address[0]}:{address[1]} does not answer as rank {peer} ({seen}); "
            "the port may belong to another program: choose another MASTER_PORT"
        ) from error
    except BaseException:
        sock.close()
        raise


class Acceptor:
    """An async context: while it is open, handshakes run concurrently; on exit, the listener is closed.

    Args:
        listener: owned by the acceptor from now on.
        admit: decides on a hello after its sender has proved the key.
        enter: called with an admitted caller's socket; cancelled when the acceptor closes.
        turned_away: called with the error of every caller that was not admitted, also if it closed or timed out.
        failed: called with each error that `enter` or `turned_away` raises, and with an error that ends the acceptor.
            If None, such an error ends the acceptor and is raised when the acceptor closes.
    """

    def __init__(
        self,
        listener: socket.socket,
        me: Identity,
        admit: Callable[[Hello], Verdict],
        enter: Callable[[Hello, socket.socket], Awaitable[None]],
        turned_away: Callable[[Exception], None] = lambda error: None,
        failed: Callable[[Exception], None] | None = None,
    ):
        self._listener, self._me = listener, me
        self._admit, self._enter, self._turned_away, self._failed = admit, enter, turned_away, failed
        self._silent: dict[socket.socket, asyncio.Task[None]] = {}
        self._speaking: dict[socket.socket, asyncio.Task[None]] = {}

    async def __aenter__(self) -> "Acceptor":
        self._serving = asyncio.create_task(self._supervise(self._serve))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._serving.cancel()
        await asyncio.wait([self._serving])
        for sock in (self._listener, *self._silent, *self._speaking):
            sock.close()
        if not self._serving.cancelled():
            self._serving.result()

    async def _supervise(self, work: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Report an unexpected error to the owner at once, so that it neither ends the acceptor nor stays unseen."""
        try:
            await work(*arguments)
        except Exception as error:
            if self._failed is None:
                raise
            self._failed(error)

    async def _serve(self) -> None:
        async with Nursery() as callers:
            while True:
                sock = await accept(self._listener)
                if len(self._silent) + len(self._speaking) >= STRANGERS:
                    next(iter((self._silent or self._speaking).values())).cancel()
                self._silent[sock] = callers.create_task(self._supervise(self._greet, sock))

    async def _greet(self, sock: socket.socket) -> None:
        try:
            tune(sock)
            hello = await converse(sock, accepting(self._me, self._admit), partial(self._spoke, sock))
        except (TransportError, OSError, TimeoutError) as error:
            sock.close()
            return self._turned_away(error)
        except BaseException:
            sock.close()
            raise
        finally:
            self._silent.pop(sock, None)
            self._speaking.pop(sock, None)
        try:
            await self._enter(hello, sock)
        except Exception:
            sock.close()
            raise

    def _spoke(self, sock: socket.socket) -> None:
        if sock in self._silent:
            self._speaking[sock] = self._silent.pop(sock)
