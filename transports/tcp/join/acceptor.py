"""The acceptor: a listening socket, and a handshake with each connection; and `connect`, the other side of it.

A connection without proof of the key in time is dropped. A stranger costs a bounded time and a few hundred bytes, and
never keeps a rank waiting: when too many connections are in their handshake, the one that has been silent longest is
dropped, or the oldest if all have sent something.
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
    """Carry out a dialogue on a socket, within `SILENCE_S` seconds.

    Args:
        spoke: called each time that something was read.
    Raises:
        TimeoutError: the other side kept silent. ConnectionError: it hung up. Else what the dialogue raises.
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
    """Connect to a rank and be admitted; the caller owns the socket.

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
    """An async context: while it is open, handshakes run side by side; on leaving, the listener is closed.

    Args:
        listener: owned by the acceptor from now on.
        admit: judges a hello whose key is proved.
        enter: what to do with an admitted caller's socket; cancelled, if it still runs, when the acceptor closes.
        turned_away: told of every caller that was not admitted: what it did wrong, or that it hung up or kept silent.
        failed: called with each error that `enter` or `turned_away` raises, and with one that ends the acceptor. If
            None, such an error ends the acceptor and is raised when the acceptor closes.
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
        """Report an error of ours to the owner at once: it must end neither the acceptor nor stay unseen."""
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
