"""Gradient sums after the flush, early, or early before a gap: `mpirun -n 8 python -m benchmarks.sync_overlap`.

The Chimera paper's Figure 12 on emulated devices: Bert-48's stages in proportion, D = 4, N = 8, summed for real over W
groups, beside the simulator with hops and sums as they were measured alone in the same rounds. And what the sums that
a gap follows add to a step without any.
"""

import asyncio
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from typing import Any

from apps.common.lm.models.gpt2_presets import layer_shapes
from benchmarks.harness.flags import flags
from benchmarks.harness.launch import run_ranks
from benchmarks.harness.results import Reported, tell
from benchmarks.paper_figures import BERT
from benchmarks.pipelines.emulated import EmulatedJob, Load, slowest_of
from benchmarks.pipelines.gaps import Overlap, gaps_of
from benchmarks.pipelines.hops import fitted, hop
from collectives import Links, ProblemSize
from collectives.algorithms import ALL_REDUCE
from pipelined.actors.actor import Actor
from pipelined.aio.clock import RealClock
from pipelined.errors import UsageError
from pipelined.programs.costs import Costs
from pipelined.programs.overlap import SUM_STARTS
from pipelined.programs.plan import Plan
from pipelined.simulation import Machine, Parameters, StageCosts, Workload, simulate
from transports import Transport

SUMS, GAP_SUMS, GAPS, NONE = "sums alone", "gap sums alone", "gap sums only", "no sums"


@dataclass(frozen=True)
class Options(Reported):
    """Time steps with three ways to begin the gradient sums."""

    schedule: str = "chimera"
    """The schedule's name."""
    depth: int = 4
    """D."""
    microbatches: int = 8
    """N."""
    width: int = 2
    """W, groups that sum their gradients."""
    forward_ms: float = 10.0
    """Milliseconds of a forward through one stage."""
    backward_ms: float = 20.0
    """Milliseconds of a backward through one stage."""
    activation_bytes: int = 1 << 20
    """Bytes of each activation and each gradient between stages."""
    gradient_mib: float = 8.0
    """MiB of the largest stage's gradients; the others are in Bert-48's proportion."""
    algorithm: str = "rabenseifner"
    """Of the sums; the simulator prices it."""
    steps: int = 7
    """Rounds timed, after one that is not."""
    hops: int = 4
    """Messages of either size timed in each round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("forward_ms", "backward_ms", "activation_bytes", "gradient_mib", "steps", "hops"):
            if getattr(self, name) <= 0:
                fact = f"--{name.replace('_', '-')} must be above 0 (it is {getattr(self, name)})"
                raise UsageError(f"{fact}; leave it out or raise it")

    @property
    def plan(self) -> Plan:
        return Plan(self.schedule, self.depth, self.width, 1, self.microbatches)

    @property
    def gradient_bytes(self) -> tuple[int, ...]:
        """Bytes of each stage's gradients: as many blocks in each, embedding and heads at the ends.

        Raises:
            UsageError: the depth does not divide Bert-48's blocks.
        """
        first, *blocks, last = (sum(map(prod, layer.values())) for layer in layer_shapes(BERT))
        if len(blocks) % self.depth:
            raise UsageError(
                f"Bert-48 has {len(blocks)} blocks (depth: {self.depth}); take a --depth that divides them"
            )
        each = len(blocks) // self.depth
        numbers = [sum(blocks[start : start + each]) for start in range(0, len(blocks), each)]
        numbers[0], numbers[-1] = numbers[0] + first, numbers[-1] + last
        return tuple(int(self.gradient_mib * 2**18 * n / max(numbers)) * 4 for n in numbers)

    @property
    def load(self) -> Load:
        seconds = {"forward": self.forward_ms / 1e3, "backward": self.backward_ms / 1e3}
        return Load(seconds, self.activation_bytes, self.gradient_bytes)

    def gaps(self) -> dict[int, float]:
        """Idle seconds after the last backward of each stage that has such a gap."""
        return gaps_of(self.plan, Costs(self.load.seconds["forward"], self.load.seconds["backward"]))

    @property
    def workload(self) -> Workload:
        """The same for the simulator."""
        costs = StageCosts(**self.load.seconds, message_bytes=self.activation_bytes)
        parameters = [Parameters((stage,), nbytes // 4) for stage, nbytes in enumerate(self.gradient_bytes)]
        return Workload([costs] * self.depth, parameters)


@dataclass(frozen=True)
class Row:
    """One way to begin the sums.

    Args:
        steps_s: the slowest rank's seconds of each step.
    """

    sync: str
    simulated_s: float
    steps_s: tuple[float, ...]

    @property
    def step_s(self) -> float:
        return statistics.median(self.steps_s)


async def measure(actor: Actor, options: Options) -> dict[str, list[float]]:
    """Rounds of each way, of the sums alone, and of hops; seconds by what was measured, on rank 0."""
    job = await asyncio.to_thread(EmulatedJob, actor, options.plan, options.load)
    gaps = await asyncio.to_thread(options.gaps)
    taken = defaultdict[str, list[float]](list)
    works = _works(job, options.algorithm, gaps)
    for round_ in range(options.steps + 1):
        for place, (name, work) in enumerate(works.items()):
            taken[name].append(await slowest_of(actor, round_ * len(works) + place, work))
        for place in range(options.hops):
            number = 2 * (round_ * options.hops + place)
            taken["empty"].append(await hop(actor, RealClock(), 0, number))
            taken["full"].append(await hop(actor, RealClock(), options.activation_bytes, number + 1))
    return {name: several[len(several) // (options.steps + 1) :] for name, several in taken.items()}


def _works(job: EmulatedJob, algorithm: str, gaps: Collection[int]) -> dict[str, Callable[[int], Awaitable[float]]]:
    """What is done in each round, by name."""
    return {
        **{sync: partial(job.step, sync=sync, algorithm=algorithm) for sync in SUM_STARTS},
        NONE: partial(job.step, summed=()),
        GAPS: partial(job.step, algorithm=algorithm, summed=gaps),
        SUMS: lambda number: job.sums(algorithm),
        GAP_SUMS: lambda number: job.sums(algorithm, gaps),
    }


def links_of(options: Options, taken: Mapping[str, Sequence[float]]) -> Links:
    """The measured hop, with the gamma at which the sums alone take what they took.

    All of a sum that is not its messages is counted there: adding, and what ranks that share cores lose by that.
    """
    hops = fitted(taken["empty"], taken["full"], options.activation_bytes)

    def alone(gamma: float) -> float:
        return max(_sums(options, rank, Links(hops.alpha, hops.beta, gamma)) for rank in range(options.plan.world_size))

    free, unit = alone(0.0), alone(1e-9)
    return Links(hops.alpha, hops.beta, max(0.0, (statistics.median(taken[SUMS]) - free) / (unit - free)) * 1e-9)


def _sums(options: Options, rank: int, links: Links) -> float:
    """Seconds that a rank's sums take one after another."""
    plan, forms = options.plan, ALL_REDUCE.forms(options.algorithm)
    each = [(len(plan.holders(stage)), options.gradient_bytes[stage]) for stage in plan.stages_of(rank)]
    return sum(forms.seconds(ProblemSize.on_one_node(size, nbytes), links) for size, nbytes in each)


def compared(options: Options, taken: Mapping[str, Sequence[float]]) -> tuple[Links, list[Row]]:
    """The links, and a row for each way with what it is simulated to take over them."""
    links = links_of(options, taken)
    rows = []
    for sync in SUM_STARTS:
        done = simulate(options.plan, options.workload, Machine(links), sums_start=sync, all_reduce=options.algorithm)
        rows.append(Row(sync, done.makespan + done.exposed_sums, tuple(taken[sync])))
    return links, rows


def overlap_of(options: Options, taken: Mapping[str, Sequence[float]]) -> Overlap:
    """What the sums that a gap follows added."""
    return Overlap(options.gaps(), *(tuple(taken[name]) for name in (NONE, GAPS, GAP_SUMS, SUMS)))


def gains(rows: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Throughput over that of summing after the flush, simulated and measured."""
    after = next(row for row in rows if row.sync == "after")
    return {r.sync: (after.simulated_s / r.simulated_s, after.step_s / r.step_s) for r in rows}


def plain(options: Options, links: Links, rows: Sequence[Row], overlap: Overlap) -> dict[str, Any]:
    """As JSON can hold it."""
    shares, alone = gains(rows), statistics.median(overlap.all_s)
    machine = {"alpha_s": links.alpha, "beta_s": links.beta, "gamma_s": links.gamma, "load": os.getloadavg()[0]}
    sums = {"gradient_bytes": options.gradient_bytes, "sums_alone_s": alone, **machine}
    figures = [
        {**asdict(r), "step_s": r.step_s, "simulated_gain": shares[r.sync][0], "gain": shares[r.sync][1]} for r in rows
    ]
    return {**asdict(options), **sums, "rows": figures, "overlap": overlap.to_dict()}


def report(options: Options, links: Links, rows: Sequence[Row], overlap: Overlap) -> str:
    """The table; throughput is over that of summing after the flush."""
    alone, shares = statistics.median(overlap.all_s), gains(rows)
    lines = [
        f"{'sums':6} {'simulated':>10} {'step':>9} (least-most), ratio; throughput over after: simulated, measured"
    ]
    for row in rows:
        simulated, measured = shares[row.sync]
        lines.append(
            f"{row.sync:6} {row.simulated_s * 1e3:10.1f} {row.step_s * 1e3:9.1f} ({min(row.steps_s) * 1e3:.1f}-"
            f"{max(row.steps_s) * 1e3:.1f}) {row.step_s / row.simulated_s:.3f}; {simulated:.3f} {measured:.3f}"
        )
    sizes = ", ".join(f"{nbytes / 2**20:.1f}" for nbytes in options.gradient_bytes)
    lines.append(
        f"{options.schedule} D={options.depth} N={options.microbatches} W={options.width}, gradients of {sizes} MiB; "
        f"the sums alone {alone * 1e3:.1f} ms, a hop {links.alpha * 1e3:.2f} ms and "
        f"{links.beta * 2**20 * 1e3:.2f} ms/MiB; load {os.getloadavg()[0]:.1f}"
    )
    return "\n".join([*lines, overlap.line()])


async def bench(transport: Transport, options: Options) -> int:
    """One rank of the comparison."""
    async with Actor(transport) as actor:
        taken = await measure(actor, options)
    if transport.rank == 0:
        links, rows = await asyncio.to_thread(compared, options, taken)
        overlap = await asyncio.to_thread(overlap_of, options, taken)
        found = options, links, rows, overlap
        tell(options, plain(*found), lambda: report(*found))
    return 0


def main() -> int:
    """Read the flags and run on whatever launcher started this."""
    options = flags(Options, "sync_overlap")
    return run_ranks(lambda transport: bench(transport, options), exactly=options.plan.world_size)


if __name__ == "__main__":
    sys.exit(main())
