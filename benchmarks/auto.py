"""Does `auto` choose well? Measures prices, then times every algorithm afresh over a grid, and compares.

    mpirun -n 8 python -m benchmarks.auto [--rounds 7] [--ranks 2,3,4,8] [--json]

The rule: what is compared was timed after `auto` had its prices, all algorithms in turns within each round.
"""

import argparse
import asyncio
import json
import statistics
from time import perf_counter

import numpy as np

from collectives import Group, all_reduce, barrier, measure
from collectives._prices import runnable
from transports import Transport, new_event_loop, open_transport

SIZES = tuple(1 << power for power in range(10, 27, 2))
NEAR = 1.10
"""Within so much of the best, a choice counts as good."""
FEW = 1 << 24
"""From so many bytes on, only a third of the rounds."""


async def main() -> None:
    """Time each group of the first ranks in turn; the first rank prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ranks", default="2,3,4,8")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    async with await open_transport("mpi://") as transport:
        counts = [count for count in map(int, options.ranks.split(",")) if count <= transport.world_size]
        rows = []
        for channel, count in enumerate(counts, 1):
            if transport.rank < count:
                rows += await grid(transport, count, channel, options.rounds)
            await barrier(Group(transport, range(transport.world_size), 0))
        if not transport.rank:
            print(json.dumps(rows) if options.json else told(rows), flush=True)


async def grid(transport: Transport, count: int, channel: int, rounds: int) -> list[dict]:
    """A row for every size at this number of ranks."""
    group, rows = Group(transport, range(count), channel), []
    names = await runnable(group)
    prices = await measure(group)
    for nbytes in SIZES:
        taken = np.zeros((max(3, rounds // 3) if nbytes >= FEW else rounds, len(names)))
        for turn in taken:
            for place, name in enumerate(names):
                array = np.full(nbytes // 4, 1.0, np.float32)
                await barrier(group)
                start = perf_counter()
                await all_reduce(group, array, "sum", name)
                turn[place] = perf_counter() - start
        await all_reduce(group, taken, "max", "ring")
        medians = dict(zip(names, map(float, np.median(taken, axis=0)), strict=True))
        best, chosen = min(medians, key=medians.get), prices.cheapest(nbytes)
        rows.append(
            {"ranks": count, "bytes": nbytes, "auto": chosen, "best": best, "ratio": medians[chosen] / medians[best]}
        )
    return rows


def told(rows: list[dict]) -> str:
    """The grid as text, and the share of good choices."""
    lines = [f"{'ranks':>5} {'KiB':>7}  {'auto':20} {'best':20} {'ratio':>6}"]
    for row in rows:
        kib = row["bytes"] >> 10
        lines.append(f"{row['ranks']:5} {kib:7}  {row['auto']:20} {row['best']:20} {row['ratio']:6.2f}")
    good = statistics.mean(row["ratio"] <= NEAR for row in rows)
    return "\n".join([*lines, f"within {NEAR - 1:.0%} of the best: {good:.0%} of {len(rows)}"])


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())
