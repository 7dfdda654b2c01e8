"""All-reduce over TCP beside gloo's: `python -m benchmarks.tcp_all_reduce`.

Starts its own ranks on this machine; the measure is the ratio of times within a round.
"""

import statistics
import sys
from dataclasses import dataclass
from typing import Any

import tyro

from benchmarks.harness.ranks import Loop, check, launch, program, spread
from benchmarks.harness.results import Reported, tell
from collectives.algorithms import ALL_REDUCE, AUTO
from pipelined.errors import UsageError

Row = dict[str, Any]


@dataclass(frozen=True)
class Options(Reported):
    """Time all-reduces of float32 over TCP beside gloo's."""

    ranks: tuple[int, ...] = (2, 4)
    """Worlds to start, one after another."""
    sizes: tuple[int, ...] = (1 << 10, 16 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
    """Bytes of an array."""
    algorithms: tuple[str, ...] = ("ring", "multi_ring")
    """Ours, by name."""
    rounds: int = 7
    """Rounds timed, after two that are not."""
    bytes_a_turn: int = 64 << 20
    """How much is reduced in a turn."""
    most_repeats: int = 50
    """All-reduces in a turn, at most."""
    unix: bool = False
    """Let ours take Unix sockets, as ranks of one machine do by themselves. Gloo has no such road: this shows what a
    user gets, not which all-reduce is better."""
    loop: Loop = "select"
    """The event loop of all ranks; uvloop where it is installed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.loop, bytes_a_turn=[self.bytes_a_turn], most_repeats=[self.most_repeats])
        check(least=2, ranks=self.ranks, rounds=[self.rounds])
        if odd := [size for size in self.sizes if size < 4 or size % 4]:
            raise UsageError(f"--sizes must be whole float32 (bytes: {', '.join(map(str, odd))}); name multiples of 4")
        known = sorted((AUTO, *ALL_REDUCE.names))
        if unknown := [name for name in self.algorithms if name not in known]:
            raise UsageError(f"unknown algorithm {', '.join(unknown)}; known: {', '.join(known)}")


def rows(ranks: int, measured: list[tuple[int, dict[str, list[float]]]]) -> list[Row]:
    """One for each size and algorithm: medians of times, and of ratios of times within a round."""
    found = []
    for nbytes, times in measured:
        for name in (name for name in times if name != "gloo"):
            seconds = statistics.median(times[name])
            row: Row = {"ranks": ranks, "algorithm": name, "bytes": nbytes, "seconds": seconds}
            row["algbw"] = nbytes / seconds
            row["busbw"] = 2 * (ranks - 1) / ranks * row["algbw"]
            row["gloo_s"] = statistics.median(times["gloo"])
            row["over_gloo"] = spread([b / a for a, b in zip(times[name], times["gloo"], strict=True)])
            found.append(row)
    return found


def table(found: list[Row]) -> str:
    """For people: a line a row."""
    head = (
        f"{'ranks':>5}  {'algorithm':12}{'bytes':>10}{'time':>12}{'algbw':>8}{'busbw':>8}{'gloo':>12}{'over gloo':>20}"
    )
    return "\n".join([head, *map(line, found)])


def line(row: Row) -> str:
    bandwidths = "".join(f"{row[name] / 1e9:>8.2f}" for name in ("algbw", "busbw"))
    ratio = "{1:.2f} ({0:.2f}-{2:.2f})".format(*row["over_gloo"])
    return (
        f"{row['ranks']:>5}  {row['algorithm']:12}{row['bytes']:>10}{row['seconds'] * 1e6:>9,.0f} µs{bandwidths}"
        f"{row['gloo_s'] * 1e6:>9,.0f} µs{ratio:>20}"
    )


def main() -> None:
    """Read the flags, measure, tell."""
    options = tyro.cli(Options, prog="python -m benchmarks.tcp_all_reduce")
    names = ("sizes", "algorithms", "rounds", "bytes_a_turn", "most_repeats", "loop", "unix")
    task = {name: getattr(options, name) for name in names}
    found = [
        row for ranks in options.ranks for row in rows(ranks, launch("benchmarks.links.tcp_reducers", ranks, task))
    ]
    tell(options, {"loop": options.loop, "unix": options.unix, "rows": found}, lambda: table(found))


if __name__ == "__main__":
    sys.exit(program(main))
