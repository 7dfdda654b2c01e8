"""Messages while the device computes, and what the computing loses to them.

Both ranks compute, in small torch operations, which take the interpreter's lock as often as training does.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from benchmarks.links.roads import Messages
from transports import Transport

SETTLED_S = 0.005
"""How long the devices have been at work when a message leaves."""
TURNS = 10
"""How often computing that is polled beside takes turns with computing that is not: the machine's speed swings."""


class Layers:
    """A small network's forwards and backwards, about a millisecond each, the memory they need being there."""

    def __init__(self) -> None:
        wide = (torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
        self._layers, self._rows = torch.nn.Sequential(*wide), torch.randn(64, 256)

    def __call__(self, times: int) -> float:
        """Compute so often; returns the seconds it took."""
        start = time.perf_counter()
        for _ in range(times):
            self._layers(self._rows).square().mean().backward()
        return time.perf_counter() - start

    def times_in(self, seconds: float) -> int:
        """How often this fits into about so many seconds."""
        self(10)
        return max(TURNS, int(seconds / self(20) * 20))


class Computing:
    """A device that one can also wait for without an event loop: one thread for both, so that its memory is the same.

    Args:
        work: computes a given number of times, and returns the seconds.
        times: how often at a time.
    """

    def __init__(self, transport: Transport, peer: int, work: Callable[[int], float], times: int):
        self._transport, self._peer, self._work, self._times = transport, peer, work, times
        self._thread = ThreadPoolExecutor(1)

    async def share_lost(self, number: int) -> float:
        """Compute unpolled, and while a message is waited for, in turns; by what share the latter took longer."""
        waiting = asyncio.ensure_future(self._transport.receive(self._peer, ("after work", number)))
        polled = unpolled = 0.0
        for _ in range(TURNS):
            unpolled += self._thread.submit(self._work, self._times // TURNS).result()
            polled += await self._begin(self._times // TURNS)
        self._transport.set_computing(False)
        await self._transport.send(self._peer, ("after work", number))
        await waiting
        return polled / unpolled - 1

    async def one_way(self, road: Messages, first: bool) -> float:
        """Seconds of one way there and back while both ends compute."""
        working = self._begin(self._times)
        await asyncio.sleep(SETTLED_S)
        seconds = await road.ping_pong(first, 1)
        await working
        self._transport.set_computing(False)
        return seconds

    def close(self) -> None:
        """Let the thread go."""
        self._thread.shutdown()

    def _begin(self, times: int) -> asyncio.Future:
        self._transport.set_computing(True)
        return asyncio.get_running_loop().run_in_executor(self._thread, self._work, times)
