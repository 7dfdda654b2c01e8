"""Ranks that all-reduce by gloo and by ours in turns: a rank of `python -m benchmarks.tcp_all_reduce`.

A time is the slowest rank's, between two barriers of no algorithm's own; every rank's sums are checked.
"""

import sys
import time
from collections.abc import Awaitable, Callable

import numpy as np
import torch
from torch import distributed

from benchmarks.harness.ranks import Task, run
from benchmarks.links.tcp_roads import join_gloo
from collectives import Group, all_reduce, barrier
from transports import open_transport

Reduce = Callable[[np.ndarray], Awaitable[None]]
Times = dict[str, list[float]]
WARM_UP, CHANNEL, FAR_CHANNEL = 2, 1, 2


async def measure(task: Task) -> list[tuple[int, Times]]:
    """For each size, the seconds of an all-reduce by each algorithm in each round; rank 0's are whole."""
    async with await open_transport("tcp://" if task["unix"] else "tcp://?unix=no") as transport:
        join_gloo(task["folder"])
        ranks = range(transport.world_size)
        reduces = {name: ours(Group(transport, ranks, CHANNEL), name) for name in task["algorithms"]}
        barriers = Group(transport, ranks, FAR_CHANNEL)
        try:
            return [(size, await compared(barriers, {"gloo": gloo, **reduces}, size, task)) for size in task["sizes"]]
        finally:
            distributed.destroy_process_group()


def ours(group: Group, name: str) -> Reduce:
    """An all-reduce of ours by this algorithm."""

    async def reduce(array: np.ndarray) -> None:
        await all_reduce(group, array, algorithm=name)

    return reduce


async def gloo(array: np.ndarray) -> None:
    """torch.distributed's, which blocks."""
    distributed.all_reduce(torch.from_numpy(array))


async def compared(barriers: Group, reduces: dict[str, Reduce], nbytes: int, task: Task) -> Times:
    """The algorithms in turns, round after round, each time beginning with the next."""
    names, times = list(reduces), {name: [] for name in reduces}
    repeats = max(1, min(task["most_repeats"], task["bytes_a_turn"] // nbytes))
    for turn in range(-WARM_UP, task["rounds"]):
        for place in range(len(names)):
            name = names[(place + turn) % len(names)]
            seconds = await timed(barriers, reduces[name], nbytes, repeats, name)
            if turn >= 0:
                times[name].append(seconds)
    return times


async def timed(barriers: Group, reduce: Reduce, nbytes: int, repeats: int, name: str) -> float:
    """The mean seconds of so many all-reduces of arrays that never overflow, on the slowest rank."""
    arrays = [filled(barriers.rank, nbytes) for _ in range(repeats)]
    await barrier(barriers)
    start = time.perf_counter()
    for array in arrays:
        await reduce(array)
    seconds = np.array([(time.perf_counter() - start) / repeats])
    await all_reduce(barriers, seconds, op="max", algorithm="ring")
    check(arrays[-1], barriers.size, name)
    return float(seconds[0])


def filled(rank: int, nbytes: int) -> np.ndarray:
    """Small whole numbers, so that sums are exact in any order."""
    return (np.arange(nbytes // 4, dtype=np.float32) % 1000) * (rank + 1)


def check(array: np.ndarray, size: int, name: str) -> None:
    """Raise RuntimeError unless these are the sums."""
    if not np.array_equal(array, filled(size * (size + 1) // 2 - 1, array.nbytes)):
        raise RuntimeError(f"wrong sums by {name} (bytes: {array.nbytes}, ranks: {size}); do not trust its times")


if __name__ == "__main__":
    sys.exit(run(measure))
