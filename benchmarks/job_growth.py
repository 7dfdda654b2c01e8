"""How the traffic of a job's start grows with its ranks: `python -m benchmarks.job_growth`.

Ranks live in one process, on `local` transports (the rendezvous: over loopback TCP), and say what real ranks say: an
agreement on an outcome (`agree`), the first sum of the step totals with its fingerprints, and the same sum again.
Messages and bytes are the same on any machine; CPU seconds are this machine's, of all ranks together.
"""

import asyncio
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import tyro

from benchmarks.harness.results import Reported, tell
from collectives import Group, all_reduce
from pipelined.actors.agree import agree
from pipelined.programs.updates.step_totals import StepAccount, StepTotals
from tests.conformance.worlds import tcp_world
from transports import Transport
from transports.local import world

NAMES = [f"parameter-{number}" for number in range(148)]
"""As many as GPT-2 small has."""
A_PIPE, MICROBATCHES = 4, 8
"""Ranks of a pipe, and microbatches of each pipe in a step."""
Say = Callable[[Transport], Coroutine[Any, Any, Any]]


@dataclass(frozen=True)
class Options(Reported):
    """Say what the ranks of a job say to one another, by their number."""

    ranks: tuple[int, ...] = (64, 256, 1024, 4096)
    """On `local`."""
    tcp: tuple[int, ...] = (8, 16, 32, 64)
    """Ranks of a rendezvous over TCP, all in one process."""


@dataclass(frozen=True)
class Size:
    """One number of ranks.

    Args:
        phases: by name, `cpu_s` of all ranks, `messages` and `bytes` that all sent, `most_messages` and `most_bytes`
            that one rank sent, and `messages_0` that rank 0 sent.
    """

    ranks: int
    phases: dict[str, dict[str, float]] = field(default_factory=dict)


def measure(ranks: int) -> Size:
    """Play the phases of a start, one after another, on a world of so many ranks."""
    return asyncio.run(_measure(ranks))


async def _measure(ranks: int) -> Size:
    transports, size = world(ranks), Size(ranks)
    totals = StepTotals(NAMES, ranks // A_PIPE * MICROBATCHES)
    groups: dict[int, Group] = {}

    async def agree_once(transport: Transport) -> None:
        await agree(transport, "ready", asyncio.sleep(0))

    async def join(transport: Transport) -> None:
        groups[transport.rank] = Group(transport, range(ranks), 0)

    async def add(transport: Transport) -> None:
        await all_reduce(groups[transport.rank], totals.vector(StepAccount(), busy=1.0))

    phases: dict[str, Say] = {"together": agree_once, "group": join, "first sum": add, "sum": add}
    for name, say in phases.items():
        size.phases[name] = await _phase(transports, say)
    return size  # nothing is closed, for each would tell all others, and the process ends here


async def _phase(transports: Sequence[Transport], say: Say) -> dict[str, float]:
    before = [(each.traffic.messages_sent, each.traffic.bytes_sent) for each in transports]
    began = time.process_time()
    await asyncio.gather(*(say(each) for each in transports))
    cpu_s = time.process_time() - began
    now = [(each.traffic.messages_sent, each.traffic.bytes_sent) for each in transports]
    messages = [after[0] - ago[0] for after, ago in zip(now, before, strict=True)]
    nbytes = [after[1] - ago[1] for after, ago in zip(now, before, strict=True)]
    return {
        "cpu_s": cpu_s,
        "messages": sum(messages),
        "most_messages": max(messages),
        "messages_0": messages[0],
        "bytes": sum(nbytes),
        "most_bytes": max(nbytes),
    }


def rendezvous(ranks: int) -> Size:
    """Let so many ranks meet over TCP."""
    return asyncio.run(_rendezvous(ranks))


async def _rendezvous(ranks: int) -> Size:
    began, files = time.process_time(), len(os.listdir("/proc/self/fd"))
    met = await tcp_world(ranks)
    connections = (len(os.listdir("/proc/self/fd")) - files) / 2
    cpu_s = time.process_time() - began
    await asyncio.gather(*(transport.close() for transport in met))
    return Size(ranks, {"rendezvous": {"cpu_s": cpu_s, "connections": connections}})


def exponents(sizes: Sequence[Size], phase: str, unit: str) -> list[float]:
    """Of a figure in the number of ranks, from each size to the next; nan where it is 0."""
    figures = [size.phases[phase][unit] for size in sizes]
    return [
        math.log(more / less) / math.log(after.ranks / before.ranks) if more and less else math.nan
        for (less, more), (before, after) in zip(pairwise(figures), pairwise(sizes), strict=True)
    ]


def table(sizes: Sequence[Size]) -> str:
    """Every phase by size, the exponent from the smallest size but one to the largest."""
    lines = [f"{'phase':>12} {'':>14}" + "".join(f"{size.ranks:>12}" for size in sizes) + "    exponents"]
    for phase, units in sizes[0].phases.items():
        for unit in units:
            cells = "".join(f"{size.phases[phase][unit]:12.4g}" for size in sizes)
            grown = " ".join(f"{each:.2f}" for each in exponents(sizes, phase, unit))
            lines.append(f"{phase:>12} {unit:>14}{cells}    {grown}")
    return "\n".join(lines)


def main() -> int:
    """Read the flags, play every size in a process of its own, and show what came of it."""
    options = tyro.cli(Options, prog="python -m benchmarks.job_growth")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        sizes = [play.result() for play in [pool.submit(measure, ranks) for ranks in options.ranks]]
        met = [play.result() for play in [pool.submit(rendezvous, ranks) for ranks in options.tcp]]
    found = {"ranks": [asdict(size) for size in sizes], "rendezvous": [asdict(size) for size in met]}
    tell(options, found, lambda: "\n\n".join(table(each) for each in (sizes, met) if each))
    return 0


if __name__ == "__main__":
    sys.exit(main())
