"""Slow links over TCP beside what was asked of them: `python -m benchmarks.shaped_links`.

Starts two ranks for each shape; the measure is what was delivered over what was asked. Where that is a matter of
chance, it is what the link's seed draws for the very messages that are timed: a mean of few draws lies as far from that
of the law as chance has it, which says nothing of the link. That the draws follow the law is held by tests.
"""

import math
import statistics
import sys
from dataclasses import dataclass
from typing import Any

import tyro

from benchmarks.harness.ranks import check, launch, program
from benchmarks.harness.results import Reported, tell
from benchmarks.links.shaped_pair import WARM_UP
from pipelined.errors import UsageError
from transports.emulation.link_timing import LinkTiming, retransmission_timeout
from transports.emulation.options import EXAMPLE, OPTIONS, LinkProfile
from transports.urls import split_profile

PROMISE = 0.05
"""How far from what was asked a latency or a rate may be."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Options(Reported):
    """Measure slow links over TCP."""

    shapes: tuple[str, ...] = (
        "delay=5ms",
        "delay=50ms",
        "delay=50ms&jitter=50ms",
        "rate=100mbit",
        "delay=5ms&rate=500mbit",
        "delay=20ms&rate=2gbit",
        "delay=10ms&loss=0.05",
    )
    """What follows the ? in the URL."""
    turns: int = 40
    """Messages there and back, after ten that are not timed."""
    streams: int = 3
    """Times the rate is measured."""
    bytes: int = 1 << 20
    """Bytes of the messages that fill a link."""
    messages: int = 10
    """How many of them follow one another."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(least=2, turns=[self.turns])
        check(streams=[self.streams], bytes=[self.bytes], messages=[self.messages])
        try:
            shapes = [split_profile(query)[0] for query in self.shapes]
        except ValueError as error:
            raise UsageError(str(error)) from error
        if None in shapes:
            raise UsageError(f"a shape without any of its options (known: {', '.join(OPTIONS)}); {EXAMPLE}")


def measured(query: str, options: Options) -> Row:
    """One shape: its mean latency and median rate, beside what was asked."""
    shape = split_profile(query)[0].between(0, 1)
    limited = not math.isinf(shape.rate)
    sizes = {name: getattr(options, name) for name in ("turns", "bytes", "messages")}
    task = {"url": f"tcp://?{query}", "loop": "select", "streams": options.streams if limited else 0, **sizes}
    found = launch("benchmarks.links.shaped_pair", 2, task)
    latencies, asked = found["latencies"], drawn(shape, options.turns)
    row: Row = {"shape": query, "law_s": expected(shape), "asked_s": statistics.mean(asked)}
    row["latency_s"] = statistics.mean(latencies)
    row["latency_off"] = row["latency_s"] / row["asked_s"] - 1 if shape.delay else None
    row["latency_error"] = standard_error(latencies, asked) / row["asked_s"] if shape.delay else None
    row["asked_rate"] = shape.rate if limited else None
    row["rate"] = statistics.median(found["rates"]) if limited else None
    row["rate_off"] = row["rate"] / shape.rate - 1 if limited else None
    return row


def expected(shape: LinkProfile) -> float:
    """The mean latency of an empty message: jitter evens out, and k losses in a row cost 2**k - 1 time-outs.

    The mean of 2**k - 1 with a chance p of a loss is p / (1 - 2p), which is finite up to p = 1/2.
    """
    return shape.delay + retransmission_timeout(shape) * shape.loss / (1 - 2 * shape.loss)


def drawn(shape: LinkProfile, turns: int) -> list[float]:
    """Half of each way there and back that is timed, as the links' seed has it: seconds of empty messages."""
    there, back = LinkTiming(shape, (0, 1)), LinkTiming(shape, (1, 0))
    ways, now = [], 0.0
    for _ in range(WARM_UP + turns):
        arrived = back.passage(there.passage(now, 0).arrival, 0).arrival
        ways.append((arrived - now) / 2)
        now = arrived
    return ways[WARM_UP:]


def standard_error(latencies: list[float], asked: list[float]) -> float:
    """Of the mean by which what was timed differs from what was drawn, in seconds."""
    late = [took - should for took, should in zip(latencies, asked, strict=True)]
    return statistics.stdev(late) / len(late) ** 0.5


def table(rows: list[Row]) -> str:
    """For people: a line a shape."""
    head = f"{'shape':26}{'law':>11}{'drawn':>11}{'latency':>11}{'off':>8}{'±':>7}{'asked':>12}{'rate':>12}{'off':>8}"
    return "\n".join([head, *map(line, rows)])


def line(row: Row) -> str:
    times = "".join(f"{row[name] * 1e3:>8.2f} ms" for name in ("law_s", "asked_s", "latency_s"))
    error = f"{'':7}" if row["latency_error"] is None else f"{row['latency_error']:>7.1%}"
    latency = f"{row['shape']:26}{times}{off(row['latency_off'])}{error}"
    if row["rate"] is None:
        return latency
    rates = "".join(f"{row[name] / 1e6:>7.1f} MB/s" for name in ("asked_rate", "rate"))
    return f"{latency}{rates}{off(row['rate_off'])}"


def off(share: float | None) -> str:
    return f"{'':8}" if share is None else f"{share:>+8.1%}"


def main() -> None:
    """Read the flags, measure, tell."""
    options = tyro.cli(Options, prog="python -m benchmarks.shaped_links")
    rows = [measured(query, options) for query in options.shapes]
    tell(options, {"rows": rows}, lambda: table(rows))


if __name__ == "__main__":
    sys.exit(program(main))
