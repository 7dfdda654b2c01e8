"""Two ranks over slow links: a rank of `python -m benchmarks.shaped_links`.

A latency is half of a way there and back, a rate that of many messages in a row, and each is on one clock.
"""

import sys
import time

import numpy as np

from benchmarks.harness.ranks import Task, run
from transports import Transport, open_transport

WARM_UP = 10  # turns in which a sender learns how late its timers ring


async def measure(task: Task) -> dict[str, list[float]]:
    """Seconds of one way of an empty message, and bytes a second of many large ones; rank 0's are whole."""
    async with await open_transport(task["url"]) as end:
        latencies = [await half_way(end, number) for number in range(task["turns"] + WARM_UP)][WARM_UP:]
        rates = [await rate(end, number, task) for number in range(task["streams"])]
        return {"latencies": latencies, "rates": rates}


async def half_way(end: Transport, number: int) -> float:
    """There and back once."""
    start = time.perf_counter()
    if end.rank == 0:
        await end.send(1, ("there", number))
        await end.receive(1, ("back", number))
    else:
        await end.receive(0, ("there", number))
        await end.send(0, ("back", number))
    return (time.perf_counter() - start) / 2


async def rate(end: Transport, number: int, task: Task) -> float:
    """From the arrival of the first message to that of the last, which both are at rank 0."""
    body = np.ones(task["bytes"], np.uint8)
    if end.rank == 1:
        for _ in range(task["messages"] + 1):
            await end.send(0, ("stream", number), body)
        await end.receive(0, ("next", number))
        return 0.0
    await end.receive(1, ("stream", number), [body])
    start = time.perf_counter()
    for _ in range(task["messages"]):
        await end.receive(1, ("stream", number), [body])
    seconds = time.perf_counter() - start
    await end.send(1, ("next", number))
    return task["messages"] * task["bytes"] / seconds


if __name__ == "__main__":
    sys.exit(run(measure))
