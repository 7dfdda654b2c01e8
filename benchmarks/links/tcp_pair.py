"""Two ranks that send one another messages by every road in turns: a rank of `python -m benchmarks.tcp`.

A time is half of a way there and back, on one clock; the contents are written and compared outside it.
"""

import sys
import time

import numpy as np

from benchmarks.harness.ranks import Task, run
from benchmarks.links.tcp_roads import Bare, Buffers, Gloo, Messages, Road
from transports import Transport, open_transport

Times = dict[str, list[float]]
WARM_UP = 2


async def measure(task: Task) -> list[tuple[int, Times]]:
    """For each size, the seconds of a message by each road in each round; rank 0's are whole."""
    async with await open_transport("tcp://?unix=no") as transport:  # as between machines: what is compared is TCP
        roads = await opened(transport, task["folder"])
        try:
            return [(nbytes, await compared(transport, roads, nbytes, task)) for nbytes in task["sizes"]]
        finally:
            for road in roads.values():
                road.close()


async def opened(transport: Transport, folder: str) -> dict[str, Road]:
    """All roads between the two ranks."""
    bare, tuned = await Bare.open(transport), await Bare.open(transport, tuned=True)
    gloo = Gloo.open(1 - transport.rank, folder)
    return {"bare": bare, "tuned": tuned, "gloo": gloo, "buffer": Buffers(transport), "message": Messages(transport)}


async def compared(transport: Transport, roads: dict[str, Road], nbytes: int, task: Task) -> Times:
    """The roads in turns, round after round, each time beginning with the next."""
    times: Times = {name: [] for name in roads}
    ways = max(2, min(task["most_ways"], task["bytes_a_turn"] // (2 * nbytes)))
    mine, theirs = memoryview(np.empty(nbytes, np.uint8)), memoryview(np.empty(nbytes, np.uint8))
    for turn in range(-WARM_UP, task["rounds"]):
        names = list(roads)
        for place in range(len(names)):
            name = names[(place + turn) % len(names)]
            salt = WARM_UP + turn + place
            fill(mine, salt)
            seconds = await there_and_back(transport.rank, roads[name], mine, theirs, ways)
            check(theirs, salt, name)
            if turn >= 0:
                times[name].append(seconds)
    return times


async def there_and_back(rank: int, road: Road, mine: memoryview, theirs: memoryview, ways: int) -> float:
    """So many times there and back; the seconds of one way."""
    start = time.perf_counter()
    for _ in range(ways):
        if rank == 0:
            await road.send(mine)
        await road.receive(theirs)
        if rank == 1:
            await road.send(mine)
    return (time.perf_counter() - start) / ways / 2


def fill(view: memoryview, salt: int) -> None:
    """The same bytes on both ranks, others in each turn."""
    np.frombuffer(view, np.uint8)[:] = (np.arange(view.nbytes, dtype=np.uint32) + salt * 37) % 251


def check(view: memoryview, salt: int, name: str) -> None:
    """Raise RuntimeError unless the bytes are those of `fill`."""
    wanted = bytearray(view.nbytes)
    fill(memoryview(wanted), salt)
    if wanted != view:
        raise RuntimeError(f"other bytes came by {name} than were sent (bytes: {view.nbytes}); do not trust its times")


if __name__ == "__main__":
    sys.exit(run(measure))
