"""A swarm without faults beside this project's own 1F1B with recomputation: `python -m benchmarks.swarm_throughput`.

The same emulated devices, as many of them, the same depth and microbatches: first on the virtual clock (the swarm's own
actors over a virtual network, and the simulated makespan of 1F1B with free messages), then, with --real, as processes
over TCP on this machine, in turns; with --codec a third in turn is the swarm of peers that encode their messages.
"""

import asyncio
import json
import statistics
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise

import tyro

from benchmarks.harness.ranks import launch, program
from benchmarks.harness.results import Reported, tell
from benchmarks.swarm.actors import step
from benchmarks.swarm.children import address_of, child, moments
from benchmarks.swarm.devices import Work
from benchmarks.swarm.setting import Actors
from pipelined.errors import UsageError
from pipelined.programs.costs import Costs
from pipelined.programs.pricing.price import price
from pipelined.programs.recording import record
from pipelined.schedules import Shape, find

RELAY, RANKS = "benchmarks.swarm.relay", "benchmarks.swarm.throughput_ranks"
PROMISED = 0.95
"""Of 1F1B's throughput."""
HOPS_S = (0.0, 0.0), (5e-4, 0.0), (1e-3, 2.5e-4)
"""Round-trip times of the virtual network, and by how much a message may take more or less."""


@dataclass(frozen=True)
class Options(Reported):
    """Compare a swarm's throughput with 1F1B's."""

    depth: int = 4
    """Stages, D."""
    widths: tuple[int, ...] = (1, 2)
    """Peers of each stage; pipelines of 1F1B, W."""
    microbatches: tuple[int, ...] = (16, 32)
    """Microbatches a step and pipeline, N."""
    forward_ms: float = 10.0
    """Milliseconds of a forward through one stage; a backward computes it again first."""
    backward_ms: float = 20.0
    """Milliseconds of a backward through one stage, without that."""
    slots: int = 3
    """Microbatches that the trainer keeps under way for each peer."""
    real: bool = False
    """Run processes over TCP, too."""
    virtual: bool = True
    """Run on the virtual clock."""
    codec: str = ""
    """Codec of a second swarm of processes, as blockwise8."""
    activation_bytes: int = 1 << 14
    """Bytes of what goes between stages, where processes run."""
    steps: int = 4
    """Steps timed in each round of processes, after one that is not."""
    rounds: int = 3
    """Rounds of processes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        least = min(self.microbatches, default=0)
        if least < 4 * self.depth:
            fact = f"fewer than 4 D microbatches (N: {least}, D: {self.depth})"
            raise UsageError(f"{fact}; raise --microbatches or lower --depth")

    @property
    def work(self) -> Work:
        forward = self.forward_ms / 1e3
        return Work(forward, self.backward_ms / 1e3 + forward)


@dataclass(frozen=True)
class Row:
    """One shape.

    Args:
        where: "virtual, RTT", with jitter or without, or "processes".
        ours_s: seconds of 1F1B's steps, round after round.
        swarm_s: seconds of the swarm's, as many.
        rounds: in which they took turns.
    """

    where: str
    width: int
    microbatches: int
    ours_s: tuple[float, ...]
    swarm_s: tuple[float, ...]
    rounds: int = 1

    @property
    def ratio(self) -> float:
        """The swarm's throughput over 1F1B's, by medians."""
        return statistics.median(self.ours_s) / statistics.median(self.swarm_s)

    @property
    def ratios(self) -> list[float]:
        """The same, round by round."""
        return [
            statistics.median(ours) / statistics.median(swarm)
            for ours, swarm in zip(self._by_round(self.ours_s), self._by_round(self.swarm_s), strict=True)
        ]

    def _by_round(self, seconds: Sequence[float]) -> list[Sequence[float]]:
        each = len(seconds) // self.rounds
        return [seconds[first : first + each] for first in range(0, each * self.rounds, each)]

    @property
    def within(self) -> bool:
        return self.ratio >= PROMISED

    def line(self) -> str:
        return (
            f"{self.where:24} {self.width:2} {self.microbatches:3}  {_spread(self.ours_s)}  {_spread(self.swarm_s)}  "
            f"{self.ratio:.3f} ({min(self.ratios):.3f}-{max(self.ratios):.3f}){'' if self.within else '  under'}"
        )


HEAD = f"{'':24}  W   N  {'1F1B, ms (least-most)':24}  {'swarm, ms (least-most)':24}  throughput (by round)"


def _spread(seconds: Sequence[float]) -> str:
    low, middle, high = (1e3 * f(seconds) for f in (min, statistics.median, max))
    return f"{middle:8.1f} ({low:.1f}-{high:.1f})".ljust(24)


def virtual(options: Options, width: int, microbatches: int, rtt: float, jitter: float = 0.0) -> Row:
    """One shape on the virtual clock."""
    costs = Costs(options.work.forward, options.work.backward)
    shape = Shape(options.depth, microbatches)
    makespan = price(record(find("one_f_one_b"), shape, costs), costs).makespan
    peers, slots = [[1.0] * width] * options.depth, options.slots * options.depth * width
    taken = step(Actors(peers, options.work, slots, microbatches * width, rtt, jitter=jitter))
    link = f"virtual, {rtt * 1e3:.1f} ms" + (f" +- {jitter * 1e3:.2f}" if jitter else "")
    return Row(link, width, microbatches, (makespan,), (taken.seconds,))


def processes(options: Options, width: int, microbatches: int) -> list[Row]:
    """One shape as processes, 1F1B and the swarm in turns, and then the swarm that codes, if there is to be one."""
    codecs = ["", options.codec] if options.codec else [""]
    ours, swarms = list[float](), [list[float]() for _ in codecs]
    task = {
        "depth": options.depth,
        "width": width,
        "microbatches": microbatches * width,
        "forward_s": options.work.forward,
        "backward_s": options.work.backward,
        "activation_bytes": options.activation_bytes,
        "slots": options.slots * options.depth * width,
        "steps": options.steps + 1,
        "warm_up": 1,
        "loop": "select",
    }
    for _ in range(options.rounds):
        ours += launch(RANKS, options.depth * width, task)
        for codec, swarm in zip(codecs, swarms, strict=True):
            swarm += asyncio.run(_swarm({**task, "codec": codec}))
    return [
        Row(f"processes {codec}".strip(), width, microbatches, tuple(ours), tuple(swarm), options.rounds)
        for codec, swarm in zip(codecs, swarms, strict=True)
    ]


async def _swarm(task: dict[str, object]) -> list[float]:
    """Seconds from each step to the next, as the trainer sees them stand."""
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(child(RELAY, "coordinator"))
        address, said = await address_of(coordinator), json.dumps(task)
        for stage in range(task["depth"]):
            for number in range(task["width"]):
                await stack.enter_async_context(child(RELAY, "peer", address, f"{stage}-{number}", said))
        trainer = await stack.enter_async_context(child(RELAY, "train", address, "trainer", said))
        await trainer.listen()
    stood = moments(trainer.said, "step")
    return [after - before for before, after in pairwise(stood)]


def rows(options: Options) -> list[Row]:
    """Every shape, on the virtual clock and then for real."""
    shapes = [(width, microbatches) for width in options.widths for microbatches in options.microbatches]
    found = [virtual(options, *shape, *hop) for shape in shapes for hop in HOPS_S if options.virtual]
    return found + [row for shape in shapes if options.real for row in processes(options, *shape)]


def main() -> None:
    """Read the flags, run, and print."""
    options = tyro.cli(Options, prog="python -m benchmarks.swarm_throughput")
    found = rows(options)
    derived = [{**asdict(row), "ratio": row.ratio, "ratios": row.ratios, "within": row.within} for row in found]
    tell(options, {**asdict(options), "rows": derived}, lambda: "\n".join([HEAD, *(row.line() for row in found)]))


if __name__ == "__main__":
    sys.exit(program(main))
