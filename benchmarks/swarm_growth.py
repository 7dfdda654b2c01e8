"""How the cost of a swarm's membership grows with its size: `python -m benchmarks.swarm_growth`.

The real directory, with members that are the real client, view and lease of a peer or a trainer and nothing else (no
model, stage or transport), on the virtual clock. For each size: what the directory spends while nothing changes, on a
join, on a death and on the commit of a step; what a member keeps in memory; and the exponent of each in the number of
members. Then the same by the number of trainers. CPU seconds are this machine's; messages and bytes are the same on any
machine.
"""

import gc
import math
import multiprocessing
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import pairwise

import tyro

from benchmarks.harness.results import Reported, tell
from benchmarks.swarm.growth_directory import DirectoryEnd, new_directory
from benchmarks.swarm.growth_members import LightSwarm
from pipelined.aio.clock import run_virtual
from transports import Nursery

LEASE_S, FOREVER_S = 3.0, 3600.0
QUIET_S, NEWS_S = 6.0, 1.0
"""Virtual seconds of the quiet phase, and of each event's effects."""
EVENTS = 3
"""Of each kind; the figures are means."""


@dataclass(frozen=True)
class Options(Reported):
    """Say what members of a swarm cost its directory, by their number."""

    members: tuple[int, ...] = (100, 1000, 4000, 10000)
    """Peers and trainers together."""
    width: int = 25
    """Peers of a stage; there are as many stages as the members need."""
    trainers: int = 8
    """How many of the members are trainers."""
    by_trainers: tuple[int, ...] = (2, 8, 32, 128)
    """Numbers of trainers beside the peers of the second size, or of the only one."""


@dataclass(frozen=True)
class Size:
    """One size.

    Args:
        start, first, commit, change, join, death: `cpu_s`, `messages` and `bytes` of the directory for each: of the
            first commit, which tells all members; of one with the same members; and of one with others at two stages.
        quiet: the same for a second in which nothing happens.
        member_bytes: memory that a member takes, its share of the directory's included.
    """

    members: int
    stages: int
    trainers: int
    start: dict[str, float]
    quiet: dict[str, float]
    first: dict[str, float]
    commit: dict[str, float]
    change: dict[str, float]
    join: dict[str, float]
    death: dict[str, float]
    member_bytes: float


COLUMNS = ("start", "quiet", "join", "death", "first", "commit", "change")
UNITS = ("cpu_s", "messages", "bytes")


def measure(members: int, width: int, trainers: int) -> Size:
    """Play one size: once with leases that are renewed, once with none to renew, so that events stand alone."""
    stages = max(1, round((members - trainers) / width))
    quiet = run_virtual(_quiet(members, stages, trainers))
    return Size(members, stages, trainers, quiet=quiet, **run_virtual(_events(members, stages, trainers)))


async def _quiet(members: int, stages: int, trainers: int) -> dict[str, float]:
    end = new_directory()
    async with Nursery() as tasks:
        swarm = LightSwarm(end, tasks, stages, LEASE_S)
        await swarm.start(members - trainers, trainers)
        await end.clock.sleep(LEASE_S)
        cost = await _cost(end, lambda: end.clock.sleep(QUIET_S))
        swarm.stop()
    return {name: value / QUIET_S for name, value in cost.items()}


async def _events(members: int, stages: int, trainers: int) -> dict[str, dict[str, float]]:
    end = new_directory()
    async with Nursery() as tasks:
        swarm = LightSwarm(end, tasks, stages, FOREVER_S)
        before = _resident()
        start = await _cost(end, lambda: swarm.start(members - trainers, trainers))
        member_bytes = (_resident() - before) / members
        first = await _mean(end, swarm.commit, 1)
        events = {"commit": swarm.commit, "change": swarm.change, "join": swarm.join, "death": swarm.die}
        means = {name: await _mean(end, event, EVENTS) for name, event in events.items()}
        swarm.stop()
    return {"start": start, "member_bytes": member_bytes, "first": first, **means}


async def _mean(end: DirectoryEnd, event: Callable[[], Awaitable[None]], times: int) -> dict[str, float]:
    async def several() -> None:
        for _ in range(times):
            await event()
            await end.clock.sleep(NEWS_S)

    return {name: value / times for name, value in (await _cost(end, several)).items()}


async def _cost(end: DirectoryEnd, work: Callable[[], Awaitable[None]]) -> dict[str, float]:
    gc.collect()
    gc.freeze()
    before = end.cost.taken()
    await work()
    return {name: value - before[name] for name, value in end.cost.taken().items()}


def _resident() -> int:
    """Bytes of memory that this process has."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def exponents(sizes: Sequence[Size], figure: Callable[[Size], float], of: str = "members") -> list[float]:
    """Of a figure in the number of members, or of trainers, from each size to the next."""
    return [
        math.log(figure(after) / figure(before)) / math.log(getattr(after, of) / getattr(before, of))
        for before, after in pairwise(sizes)
    ]


def tables(sizes: Sequence[Size], by_trainers: Sequence[Size]) -> str:
    """All figures, for people."""
    memory = "\n".join(f"{size.members:10} {size.member_bytes / 1024:8.1f} KiB a member" for size in sizes)
    busy = f"quiet traffic alone takes one core at {busy_at(sizes[-1]):.0f} members, without sockets"
    trainers = [f"by trainers, beside {by_trainers[0].members - by_trainers[0].trainers} peers:"] if by_trainers else []
    trainers += [table(by_trainers, unit, "trainers") for unit in UNITS if by_trainers]
    return "\n\n".join([*(table(sizes, unit, "members") for unit in UNITS), memory, busy, *trainers])


def table(sizes: Sequence[Size], unit: str, of: str) -> str:
    """One kind of figure of every phase, by members or by trainers, with the exponents below."""
    rows = [f"{unit:>10}" + "".join(f"{name:>12}" for name in COLUMNS)]
    for size in sizes:
        cells = [getattr(size, name) for name in COLUMNS]
        rows.append(f"{getattr(size, of):10}" + "".join(f"{cell[unit]:12.4g}" for cell in cells))
    columns = [exponents(sizes, lambda size, name=name: getattr(size, name)[unit], of) for name in COLUMNS]
    for at, (before, after) in enumerate(pairwise(sizes)):
        span = f"{getattr(before, of)}-{getattr(after, of)}"
        rows.append(f"{span:>10}" + "".join(f"{column[at]:12.2f}" for column in columns) + "  (exponent)")
    return "\n".join(rows)


def busy_at(size: Size) -> float:
    """Members at which quiet traffic alone takes one core, if it grows as it is at this size."""
    return size.members / size.quiet["cpu_s"]


def main() -> int:
    """Read the flags, play every size in a process of its own, and show what came of it."""
    options = tyro.cli(Options, prog="python -m benchmarks.swarm_growth")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        peers = options.members[min(1, len(options.members) - 1)] - options.trainers
        plays = [pool.submit(measure, each, options.width, options.trainers) for each in options.members]
        others = [pool.submit(measure, peers + each, options.width, each) for each in options.by_trainers]
        sizes, by_trainers = [[play.result() for play in each] for each in (plays, others)]
    found = {"sizes": [asdict(size) for size in sizes], "by_trainers": [asdict(size) for size in by_trainers]}
    tell(options, found, lambda: tables(sizes, by_trainers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
