"""Messages over TCP beside bare socket pairs and gloo: `python -m benchmarks.tcp`.

Starts two ranks that talk over loopback, by every road in turns; the measure is the ratio within a round.
"""

import statistics
import sys
from dataclasses import dataclass
from typing import Any

import tyro

from benchmarks.harness.ranks import Loop, check, launch, program, spread
from benchmarks.harness.results import Reported, tell

OURS, PEERS = ("buffer", "message"), ("bare", "tuned", "gloo")
"""`tuned` is a bare socket pair with the kernel buffers that ours asks for between ranks of one machine."""
SHOWN = "bare", "gloo"
"""Peers with times of their own in the table."""


@dataclass(frozen=True)
class Options(Reported):
    """Time messages over TCP beside bare socket pairs and gloo."""

    sizes: tuple[int, ...] = (1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
    """Bytes of a message."""
    rounds: int = 9
    """Rounds timed, after two that are not."""
    bytes_a_turn: int = 256 << 20
    """How much each road carries in a turn, both ways."""
    most_ways: int = 300
    """Messages each way in a turn, at most."""
    peers: int = 100
    """Peers of one rank in the part on fairness; 0 leaves it out."""
    in_flight: int = 100
    """Messages of 1 KiB that each of them keeps in flight."""
    seconds: float = 8.0
    """How long they do."""
    loop: Loop = "select"
    """The event loop of both ranks; uvloop where it is installed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.loop, sizes=self.sizes, bytes_a_turn=[self.bytes_a_turn], most_ways=[self.most_ways])
        check(in_flight=[self.in_flight])
        check(least=0, peers=[self.peers], seconds=[self.seconds])
        check(least=2, rounds=[self.rounds])


Row = dict[str, Any]


def rows(measured: list[tuple[int, dict[str, list[float]]]]) -> list[Row]:
    """One for each size and road of ours: medians of times, and of ratios of bandwidth within a round."""
    found = []
    for nbytes, times in measured:
        for road in OURS:
            row: Row = {"road": road, "bytes": nbytes, "seconds": statistics.median(times[road])}
            row["gbytes_s"] = nbytes / row["seconds"] / 1e9
            for peer in PEERS:
                row[f"{peer}_s"] = statistics.median(times[peer])
                row[f"over_{peer}"] = spread([b / a for a, b in zip(times[road], times[peer], strict=True)])
            found.append(row)
    return found


def table(found: list[Row]) -> str:
    """For people: a line a row."""
    over = "".join(f"{f'over {peer}':>20}" for peer in PEERS)
    head = f"{'road':8}{'bytes':>10}{'time':>12}{'GB/s':>8}" + "".join(f"{peer:>12}" for peer in SHOWN) + over
    return "\n".join([head, *map(line, found)])


def line(row: Row) -> str:
    times = "".join(f"{row[name] * 1e6:>9,.0f} µs" for name in (f"{peer}_s" for peer in SHOWN))
    ratios = "".join(f"{'{1:.2f} ({0:.2f}-{2:.2f})'.format(*row[f'over_{peer}']):>20}" for peer in PEERS)
    return f"{row['road']:8}{row['bytes']:>10}{row['seconds'] * 1e6:>9,.0f} µs{row['gbytes_s']:>8.2f}{times}{ratios}"


def crowd(options: Options) -> Row:
    """How evenly a rank answers many peers that all have many messages in flight."""
    task = {"peers": options.peers, "in_flight": options.in_flight, "seconds": options.seconds, "bytes": 1 << 10}
    counts = launch("benchmarks.links.tcp_crowd", 2, {**task, "loop": options.loop})
    return {**task, "answered": sum(counts), "fewest": min(counts), "most": max(counts)}


def sentences(row: Row) -> str:
    """For people: a sentence."""
    return (
        f"{row['peers']} peers, {row['in_flight']} messages of {row['bytes']} bytes in flight each: "
        f"{row['answered'] / row['seconds']:,.0f} answers/s in order, none lost; a peer had {row['fewest']} to "
        f"{row['most']} of them ({row['most'] / max(1, row['fewest']):.2f} x)"
    )


def main() -> None:
    """Read the flags, measure, tell."""
    options = tyro.cli(Options, prog="python -m benchmarks.tcp")
    task = {name: getattr(options, name) for name in ("sizes", "rounds", "bytes_a_turn", "most_ways", "loop")}
    found = rows(launch("benchmarks.links.tcp_pair", 2, task)) if options.sizes else []
    fair = crowd(options) if options.peers else None
    lines = [*([table(found)] if found else []), *([sentences(fair)] if fair else [])]
    tell(options, {"loop": options.loop, "rows": found, "crowd": fair}, lambda: "\n".join(lines))


if __name__ == "__main__":
    sys.exit(program(main))
