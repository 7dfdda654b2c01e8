"""How well `auto` chooses, beside every algorithm timed afresh: `mpirun -n 4 python -m benchmarks.auto`.

Algorithms are timed after `auto` has its measured times, all in turns within each round.
"""

import os
import statistics
import sys
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.harness.flags import flags, lacks_ranks
from benchmarks.harness.results import Reported, tell
from collectives import Group, all_reduce, barrier, measure
from collectives.tuning import rounds_at, runnable
from pipelined.errors import UsageError
from pipelined.process.launch import detect
from pipelined.process.run import run
from transports import Transport

SIZES = tuple(1 << power for power in range(10, 27, 2))
NEAR = 1.10
"""Within so much of the best, a choice counts as good."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Options(Reported):
    """Compare what `auto` chooses with what is fastest."""

    ranks: tuple[int, ...] = (2, 3, 4, 8)
    """Groups of so many of the first ranks, one after another; those larger than the world are left out."""
    rounds: int = 7
    """Rounds timed, at the least: short arrays are timed more often."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds <= 0:
            raise UsageError(f"--rounds must be above 0 (it is {self.rounds}); leave it out or raise it")
        if not self.ranks or min(self.ranks) < 2:
            raise UsageError(f"--ranks must be groups of two or more (they are {self.ranks}); leave them out")


async def bench(transport: Transport, options: Options) -> int:
    """Time each group of the first ranks in turn; the first rank prints."""
    counts = [count for count in options.ranks if count <= transport.world_size]
    rows = []
    for channel, count in enumerate(counts, 1):
        if transport.rank < count:
            rows += await grid(transport, count, channel, options.rounds)
        await barrier(Group(transport, range(transport.world_size), 0))
    if not transport.rank:
        tell(options, rows, lambda: report(rows))
    return 0


async def grid(transport: Transport, count: int, channel: int, rounds: int) -> list[Row]:
    """A row for every size at this number of ranks."""
    group, rows = Group(transport, range(count), channel), []
    names = await runnable(group)
    measured = await measure(group)
    for nbytes in SIZES:
        taken = np.zeros((rounds_at(nbytes, rounds), len(names)))
        for turn in taken:
            for place, name in enumerate(names):
                array = np.full(nbytes // 4, 1.0, np.float32)
                await barrier(group)
                start = perf_counter()
                await all_reduce(group, array, "sum", name)
                turn[place] = perf_counter() - start
        await all_reduce(group, taken, "max", "ring")
        medians = dict(zip(names, map(float, np.median(taken, axis=0)), strict=True))
        best, chosen = min(medians, key=medians.get), measured.fastest(nbytes)
        rows.append(
            {"ranks": count, "bytes": nbytes, "auto": chosen, "best": best, "ratio": medians[chosen] / medians[best]}
        )
    return rows


def report(rows: list[Row]) -> str:
    """The grid as text, and the share of good choices."""
    lines = [f"{'ranks':>5} {'KiB':>7}  {'auto':20} {'best':20} {'ratio':>6}"]
    for row in rows:
        kib = row["bytes"] >> 10
        lines.append(f"{row['ranks']:5} {kib:7}  {row['auto']:20} {row['best']:20} {row['ratio']:6.2f}")
    good = statistics.mean(row["ratio"] <= NEAR for row in rows)
    return "\n".join([*lines, f"within {NEAR - 1:.0%} of the best: {good:.0%} of {len(rows)}"])


def main() -> int:
    """Read the flags and run on the ranks of MPI that there are."""
    options = flags(Options, "auto")
    if refused := lacks_ranks("auto", min(options.ranks)):
        return refused
    launch = detect(os.environ)
    return run(launch, launch.world_size, lambda transport: bench(transport, options))


if __name__ == "__main__":
    sys.exit(main())
