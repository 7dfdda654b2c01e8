"""Requests between two endpoints beside a bare socket pair: `python -m benchmarks.endpoints`.

Starts two processes that talk over loopback; the measure is the ratio within a round.
"""

import statistics
import sys
from dataclasses import dataclass
from typing import Any

import tyro

from benchmarks.harness.ranks import Loop, check, launch, program, spread
from benchmarks.harness.results import Reported, tell

Row = dict[str, Any]


@dataclass(frozen=True)
class Options(Reported):
    """Time asks between two endpoints beside a bare socket pair."""

    sizes: tuple[int, ...] = (1 << 10, 64 << 10, 1 << 20, 64 << 20)
    """Bytes of a question, and of its answer."""
    rounds: int = 7
    """Rounds timed, after two that are not."""
    bytes_a_turn: int = 512 << 20
    """How much each road carries in a turn, both ways."""
    most_ways: int = 300
    """Questions in a turn, at most."""
    in_flight: int = 64
    """Questions of 1 KiB that are always under way where asks a second are counted."""
    long_bytes: int = 64 << 20
    """Bytes of the questions that follow one another while short ones are timed."""
    seconds: float = 4.0
    """How long either of the two takes."""
    loop: Loop = "select"
    """The event loop of both."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.loop, sizes=self.sizes, bytes_a_turn=[self.bytes_a_turn], most_ways=[self.most_ways])
        check(in_flight=[self.in_flight], long_bytes=[self.long_bytes])
        check(least=0.1, seconds=[self.seconds])
        check(least=2, rounds=[self.rounds])


def rows(measured: list[tuple[int, dict[str, list[float]]]]) -> list[Row]:
    """One for each size: medians of times, and of ratios of bandwidth within a round."""
    found = []
    for nbytes, times in measured:
        row: Row = {"bytes": nbytes, "seconds": statistics.median(times["ask"])}
        row["gbytes_s"] = nbytes / row["seconds"] / 1e9
        row["bare_s"] = statistics.median(times["bare"])
        row["over_bare"] = spread([bare / ask for bare, ask in zip(times["bare"], times["ask"], strict=True)])
        found.append(row)
    return found


def table(found: list[Row]) -> str:
    """For people: a line a row."""
    return "\n".join([f"{'bytes':>10}{'one way':>12}{'GB/s':>8}{'bare':>12}{'over bare':>20}", *map(line, found)])


def line(row: Row) -> str:
    ratio = "{1:.2f} ({0:.2f}-{2:.2f})".format(*row["over_bare"])
    times = f"{row['seconds'] * 1e6:>9,.0f} µs{row['gbytes_s']:>8.2f}{row['bare_s'] * 1e6:>9,.0f} µs"
    return f"{row['bytes']:>10}{times}{ratio:>20}"


def sentences(options: Options, found: Row) -> str:
    """For people: two sentences."""
    beside = found["beside"]
    long_ms, short_ms, slowest_ms = (1e3 * beside[name] for name in ("long_s", "short_s", "slowest_short_s"))
    return (
        f"{options.in_flight} questions of 1024 bytes always under way: {found['asks_s']:,.0f} answered a second\n"
        f"while questions of {options.long_bytes} bytes follow one another ({long_ms:.1f} ms each), one of 1024 takes "
        f"{short_ms:.2f} ms there and back, {slowest_ms:.1f} at most"
    )


def main() -> None:
    """Read the flags, measure, tell."""
    options = tyro.cli(Options, prog="python -m benchmarks.endpoints")
    found = launch("benchmarks.links.endpoint_pair", 2, vars(options))
    found["rows"] = rows(found.pop("times"))
    tell(options, found, lambda: "\n".join([table(found["rows"]), sentences(options, found)]))


if __name__ == "__main__":
    sys.exit(program(main))
