"""Two endpoints over loopback, one of which sends requests: a rank of `python -m benchmarks.endpoints`.

A time is half of a request and its reply, on one clock; the reply has the request's bytes, which are compared outside
the measured time.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Coroutine
from typing import Any

import numpy as np

from benchmarks.harness.ranks import Task, run
from benchmarks.links.tcp_pair import WARM_UP, check, fill, there_and_back
from benchmarks.links.tcp_roads import Bare
from transports import open_transport
from transports.rpc import Endpoint, Request, Response, open_endpoint

MAX_BYTES = 1 << 30
SHORT = 1 << 10


class Pair:
    """One of the two, with both its roads to the other.

    Args:
        there: the other's address.
    """

    def __init__(self, rank: int, end: Endpoint, there: str, bare: Bare):
        self.rank, self._end, self._there, self._bare = rank, end, there, bare
        self._over: asyncio.Queue[None] = asyncio.Queue()
        end.handle("echo", self._echo, MAX_BYTES)
        end.handle("take", self._take, MAX_BYTES)
        end.handle("over", self._note)

    async def request(self, topic: str, view: memoryview) -> Response:
        return await self._end.request(self._there, topic, view)

    async def by_bare(self, mine: memoryview, theirs: memoryview, ways: int) -> float:
        """Seconds of one way by a bare socket, the contents in `theirs`."""
        return await there_and_back(self.rank, self._bare, mine, theirs, ways)

    async def by_asking(self, mine: memoryview, theirs: memoryview, ways: int) -> float:
        """Seconds of one way by requests; rank 1 replies, and waits for the end."""
        if self.rank == 1:
            return await self._over.get() or 0.0
        start = time.perf_counter()
        for _ in range(ways):
            response = await self.request("echo", mine)
        seconds = (time.perf_counter() - start) / ways / 2
        theirs[:] = response.blocks[0].data
        await self._end.request(self._there, "over")
        return seconds

    async def answering(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Let rank 0 do this while rank 1 answers."""
        if self.rank == 1:
            work.close()
            return await self._over.get()
        found = await work
        await self._end.request(self._there, "over")
        return found

    async def _echo(self, request: Request) -> Response:
        return Response(request.blocks)

    async def _take(self, request: Request) -> Response:
        return Response()

    async def _note(self, request: Request) -> Response:
        self._over.put_nowait(None)
        return Response()


async def measure(task: Task) -> Task:
    """Times by size and road, asks a second with many in flight, and short asks beside long ones; rank 0's count."""
    async with await open_transport("tcp://") as transport, await open_endpoint("tcp://127.0.0.1:0") as end:
        other = 1 - transport.rank
        await transport.send(other, ("address",), note=end.address)
        there = (await transport.receive(other, ("address",))).note
        bare = await Bare.open(transport)
        pair = Pair(transport.rank, end, there, bare)
        try:
            times = [(nbytes, await compared(pair, nbytes, task)) for nbytes in task["sizes"]]
            rate = await pair.answering(crowded(pair, task["in_flight"], task["seconds"]))
            beside = await pair.answering(overtaking(pair, task["long_bytes"], task["seconds"]))
            return {"times": times, "asks_s": rate, "beside": beside}
        finally:
            bare.close()


async def compared(pair: Pair, nbytes: int, task: Task) -> dict[str, list[float]]:
    """Both roads in turns, round after round, each time beginning with the other."""
    roads = {"bare": pair.by_bare, "ask": pair.by_asking}
    times: dict[str, list[float]] = {name: [] for name in roads}
    ways = max(2, min(task["most_ways"], task["bytes_a_turn"] // (2 * nbytes)))
    mine, theirs = memoryview(np.empty(nbytes, np.uint8)), memoryview(np.empty(nbytes, np.uint8))
    for turn in range(-WARM_UP, task["rounds"]):
        for name in sorted(roads, reverse=turn % 2 == 0):
            fill(mine, WARM_UP + turn)
            seconds = await roads[name](mine, theirs, ways)
            if pair.rank == 0:
                check(theirs, WARM_UP + turn, name)
            if turn >= 0:
                times[name].append(seconds)
    return times


async def crowded(pair: Pair, in_flight: int, seconds: float) -> float:
    """Asks of 1 KiB answered a second while so many are always under way."""
    until, count = time.perf_counter() + seconds, 0
    data = memoryview(np.random.default_rng(0).bytes(SHORT))

    async def one() -> None:
        nonlocal count
        while time.perf_counter() < until:
            await pair.request("echo", data)
            count += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(one())
    return count / seconds


async def overtaking(pair: Pair, long_bytes: int, seconds: float) -> dict[str, float]:
    """What a short ask takes there and back while long ones follow one another over the same connection."""
    data, short = (
        memoryview(np.random.default_rng(1).bytes(long_bytes)),
        memoryview(np.random.default_rng(2).bytes(SHORT)),
    )
    until, taken, longs = time.perf_counter() + seconds, [], []

    async def long_ones() -> None:
        while time.perf_counter() < until:
            start = time.perf_counter()
            await pair.request("take", data)
            longs.append(time.perf_counter() - start)

    async with asyncio.TaskGroup() as group:
        group.create_task(long_ones())
        while time.perf_counter() < until:
            start = time.perf_counter()
            await pair.request("echo", short)
            taken.append(time.perf_counter() - start)
    return {"long_s": statistics.median(longs), "short_s": statistics.median(taken), "slowest_short_s": max(taken)}


if __name__ == "__main__":
    sys.exit(run(measure))
