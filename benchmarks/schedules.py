"""Every schedule on emulated devices, beside what it was to take: `mpirun -n 8 python -m benchmarks.schedules`.

The real runtime, worker, transport and messages, on devices that take a given time for each forward and backward. All
schedules and shapes take turns in one run, and between them messages are timed between ranks that were idle, so all
that is compared was measured on the same machine in the same minutes.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from benchmarks.harness.flags import flags
from benchmarks.harness.launch import run_ranks
from benchmarks.harness.results import Reported, tell
from benchmarks.pipelines.comparison import ALPHA_LIMIT_S, HEAD, Entry, Row, inversions, makespan, rank_correlation
from benchmarks.pipelines.emulated import EmulatedJob, Load, slowest_of
from benchmarks.pipelines.hops import fitted, hop
from collectives import Links
from pipelined.actors.actor import Actor
from pipelined.aio.clock import RealClock
from pipelined.errors import UsageError
from pipelined.programs.costs import Costs
from pipelined.programs.plan import Plan
from pipelined.programs.recording import record
from pipelined.schedules import SCALE, ScheduleError, find, schedule_names
from pipelined.simulation import StageCosts
from transports import Transport

LATE = Costs(p2p=1.0)
"""Messages so late that a dynamic schedule does not do what it does with free ones."""


@dataclass(frozen=True)
class Options(Reported):
    """Time the steps of all schedules on emulated devices."""

    schedules: str = ""
    """Names with commas between; every one with a flush if open."""
    depth: int = 0
    """D; as many as there are ranks if open."""
    microbatches: tuple[int, ...] = ()
    """N, several in turn; D, 2D and 4D if open."""
    forward_ms: float = 10.0
    """Milliseconds of a forward through one stage."""
    backward_ms: float = 20.0
    """Milliseconds of a backward through one stage; each of its halves takes half."""
    activation_bytes: int = 1 << 20
    """Bytes of each activation and each gradient between stages."""
    steps: int = 7
    """Rounds timed, after one that is not."""
    hops: int = 4
    """Messages of either size timed in each round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("forward_ms", "backward_ms", "activation_bytes", "steps", "hops"):
            if getattr(self, name) <= 0:
                fact = f"--{name.replace('_', '-')} must be above 0 (it is {getattr(self, name)})"
                raise UsageError(f"{fact}; leave it out or raise it")

    @property
    def load(self) -> Load:
        forward, half = self.forward_ms / 1e3, self.backward_ms / 2e3
        seconds = {"forward": forward, "backward": 2 * half, "backward_input": half, "backward_weight": half}
        return Load(seconds, self.activation_bytes)

    @property
    def costs(self) -> StageCosts:
        """The same for the simulator."""
        return StageCosts(**self.load.seconds, message_bytes=self.activation_bytes)


def entries(options: Options, ranks: int) -> tuple[list[Entry], list[str]]:
    """What is run, and what cannot be, with the reason. A dynamic schedule is run in its recorded order, too.

    Raises:
        UsageError: an unknown schedule, too few ranks, or nothing is left.
    """
    depth = options.depth or ranks
    found, refused = list[Entry](), []
    for name, scale, microbatches in _asked(options, depth):
        called = name if scale == "direct" else f"{name}, {scale}"
        try:
            plan = _plan(name, scale, depth, microbatches)
        except ScheduleError as error:
            refused += [f"{called}, N={microbatches}: {error}"] * (scale == "direct")  # few schedules have another
            continue
        if plan.world_size > ranks:
            raise UsageError(f"too few ranks for {called} (ranks: {ranks}, needed: {plan.world_size}); lower --depth")
        found += [Entry(called, plan), *[Entry(f"{called}, as recorded", plan, True)] * _dynamic(plan)]
    if not found:
        raise UsageError(f"no schedule takes this shape: {'; '.join(refused)}")
    return found, refused


def _dynamic(plan: Plan) -> bool:
    return record(find(plan.schedule), plan.shape, LATE) != record(find(plan.schedule), plan.shape)


def _asked(options: Options, depth: int) -> Iterator[tuple[str, str, int]]:
    """(schedule, scale, N) of everything asked for."""
    chosen = options.schedules.split(",") if options.schedules else schedule_names()
    for name in chosen:
        find(name)
    return product(chosen, SCALE.choices, options.microbatches or (depth, 2 * depth, 4 * depth))


def _plan(name: str, scale: str, depth: int, microbatches: int) -> Plan:
    """The plan with two stages of a pipe on each rank if the schedule takes that, or else with one.

    Raises:
        ScheduleError: it takes no such shape, or has no step of its own.
    """
    rows = 2 if scale == "backward-halving" else 1
    try:
        plan = Plan(name, depth, 1, rows, microbatches, {"chunks": 2, "scale": scale})
    except ScheduleError:
        plan = Plan(name, depth, 1, rows, microbatches, {"scale": scale})
    if not plan.flushes:
        raise ScheduleError("without a flush a step does not end where the next begins")
    return plan


@dataclass(frozen=True)
class Measured:
    """What rank 0 knows after the last round: seconds of the slowest rank for each entry, and of each hop."""

    steps: list[list[float]]
    empty: list[float]
    full: list[float]


async def measure(actor: Actor, options: Options, chosen: list[Entry]) -> Measured:
    """Rounds of every entry and of some hops; what the first took is forgotten."""
    mine = [await asyncio.to_thread(_job, actor, entry, options.load) for entry in chosen]
    steps = [list[float]() for _ in chosen]
    hops: dict[int, list[float]] = {0: [], options.activation_bytes: []}
    for round_ in range(options.steps + 1):
        for place, job in enumerate(mine):
            steps[place].append(await slowest_of(actor, round_ * len(mine) + place, job and job.step))
        for nbytes, place in ((nbytes, place) for nbytes in hops for place in range(options.hops)):
            number = (2 * round_ + (nbytes > 0)) * options.hops + place
            hops[nbytes].append(await hop(actor, RealClock(), nbytes, number))
    return Measured([taken[1:] for taken in steps], *(taken[options.hops :] for taken in hops.values()))


def _job(actor: Actor, entry: Entry, load: Load) -> EmulatedJob | None:
    """This rank's part; None where it has none."""
    return EmulatedJob(actor, entry.plan, load, entry.recorded) if actor.rank < entry.plan.world_size else None


def compared(options: Options, chosen: list[Entry], measured: Measured) -> tuple[Links, list[Row]]:
    """The measured links, and a row for each entry with what it is simulated to take over them."""
    links = fitted(measured.empty, measured.full, options.activation_bytes)
    rows = [
        Row(
            entry.name,
            entry.plan.depth,
            entry.plan.microbatches,
            entry.plan.world_size,
            makespan(entry, options.costs),
            makespan(entry, options.costs, links),
            tuple(steps),
        )
        for entry, steps in zip(chosen, measured.steps, strict=True)
    ]
    return links, rows


def by_microbatches(rows: list[Row]) -> dict[int, list[Row]]:
    """The rows of each N, ascending."""
    return {n: [row for row in rows if row.microbatches == n] for n in sorted({row.microbatches for row in rows})}


def plain(options: Options, links: Links, rows: list[Row], refused: list[str]) -> dict[str, Any]:
    """As JSON can hold it."""
    orders = by_microbatches(rows)
    return {
        **asdict(options),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "alpha_s": links.alpha,
        "beta_s": links.beta,
        "rows": [row.to_dict() for row in rows],
        "order": {n: rank_correlation(several) for n, several in orders.items() if len(several) > 1},
        "inversions": {n: [asdict(i) for i in inversions(several)] for n, several in orders.items()},
        "refused": refused,
    }


def report(links: Links, rows: list[Row], refused: list[str]) -> str:
    """The table."""
    orders = by_microbatches(rows)
    lines = [HEAD, *[row.line() for several in orders.values() for row in several], *_summary(links, rows)]
    for n, several in orders.items():
        if len(several) > 1:
            lines.append(f"N={n}: the order is the simulated one to {rank_correlation(several):.3f} (Kendall's tau)")
            lines.extend(f"    {inversion.line()}" for inversion in inversions(several))
    return "\n".join([*lines, *[f"left out: {reason}" for reason in refused]])


def _summary(links: Links, rows: list[Row]) -> list[str]:
    worst_free, worst = max(row.over_free for row in rows), max(row.over_simulated for row in rows)
    within = sum(row.within for row in rows)
    verdict = "within" if links.alpha <= ALPHA_LIMIT_S else "over"
    return [
        f"a hop between idle ranks: {links.alpha * 1e3:.3f} ms and {links.beta * 2**20 * 1e3:.3f} ms/MiB "
        f"({verdict} the {ALPHA_LIMIT_S * 1e3} ms promised)",
        f"at most {worst_free:.3f} of the free makespan and {worst:.3f} of the simulated; "
        f"{within} of {len(rows)} within both limits; load {os.getloadavg()[0]:.1f}",
    ]


async def bench(transport: Transport, options: Options) -> int:
    """One rank of the comparison."""
    chosen, refused = await asyncio.to_thread(entries, options, transport.world_size)
    async with Actor(transport) as actor:
        measured = await measure(actor, options, chosen)
    if transport.rank == 0:
        links, rows = await asyncio.to_thread(compared, options, chosen, measured)
        tell(options, plain(options, links, rows, refused), lambda: report(links, rows, refused))
    return 0


def main() -> int:
    """Read the flags and run on whatever launcher started this."""
    options = flags(Options, "schedules")
    return run_ranks(lambda transport: bench(transport, options), alone=8)


if __name__ == "__main__":
    sys.exit(main())
