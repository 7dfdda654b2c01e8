"""The square-cube law: `python -m benchmarks.swarm_widths`.

Figures 1 and 3 of SWARM: how well layers of growing width use their devices at 500 Mb/s, in 16 and in 8 bits, played by
the swarm's own actors and codecs on the virtual clock, so that every figure is the same on any machine.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import tyro

from benchmarks.harness.results import Reported, tell
from benchmarks.swarm.actors import flow
from benchmarks.swarm.devices import CodingTime, Work
from benchmarks.swarm.setting import Actors
from benchmarks.swarm_latency import LINE, verdict

TOKENS, STAGES = 512, 4
SECONDS_PER_FLOP = 1 / 15e12
"""Of a V100 at these layers: 58 ms for xxlarge's 6.2e11 FLOP and a third more of recomputation, by Table 1."""
CODECS = {"16 bit": "fp16", "8 bit": "blockwise8"}
CODING = {"16 bit": CodingTime(), "8 bit": CodingTime(out=1 / 0.4e9, back=1 / 0.725e9)}
"""A core codes 1.6 GB a second of float32 out, and 2.9 back; a device that computes in 16 bits has nothing to do."""
IN_FLIGHT = (1, 8)


@dataclass(frozen=True)
class Options(Reported):
    """Say how utilisation grows with the width."""

    widths: tuple[int, ...] = (256, 512, 768, 1024, 2048, 4096, 8192, 12288, 16384)
    """Features of a layer."""


@dataclass(frozen=True)
class Width:
    """A point of the figures.

    Args:
        computing_ms: of a microbatch at one stage.
        idle_ms: what a stage waits for each, one microbatch in flight for each stage, in 16 bits and in 8.
        percent: of utilisation, by bits and microbatches in flight for each stage.
    """

    d_model: int
    computing_ms: float
    idle_ms: dict[str, float]
    percent: dict[str, float]

    def line(self) -> str:
        cells = "  ".join(f"{each:13.1f}" for each in self.percent.values())
        idle = "  ".join(f"{each:10.1f}" for each in self.idle_ms.values())
        return f"{self.d_model:7} {self.computing_ms:10.1f}  {idle}  {cells}"


def width(d_model: int) -> Width:
    """A transformer layer of this width a stage.

    It has 12 d² parameters: 2 FLOP for each and token forward, and 4 + 2 backward with recomputation.
    """
    forward = 2 * 12 * d_model**2 * TOKENS * SECONDS_PER_FLOP
    work = Work(forward, 3 * forward)
    found = {f"{bits}, {each}": _utilisation(d_model, work, bits, each) for each in IN_FLIGHT for bits in CODECS}
    idle = {bits: 1e3 * work.seconds * (1 / found[f"{bits}, 1"] - 1) for bits in CODECS}
    return Width(d_model, 1e3 * work.seconds, idle, {name: 100 * each for name, each in found.items()})


def _utilisation(d_model: int, work: Work, bits: str, in_flight: int) -> float:
    actors = Actors(
        [[1.0]] * STAGES,
        work,
        STAGES * in_flight,
        1,
        bandwidth=LINE,
        tensor=4.0 * TOKENS * d_model,
        codec=CODECS[bits],
        coding=CODING[bits],
    )
    return flow(actors, 2 * actors.slots, 2 * actors.slots).utilisation


def grows(found: Sequence[Width]) -> bool:
    """Whether every column grows with the width, and 8 bits are never worse, to a thousandth."""
    rows = [{name: round(each, 1) for name, each in point.percent.items()} for point in found]
    columns = [[row[name] for row in rows] for name in found[0].percent]
    better = all(row[f"8 bit, {each}"] >= row[f"16 bit, {each}"] for row in rows for each in IN_FLIGHT)
    return better and all(column == sorted(column) for column in columns)


def main() -> int:
    """Read the flags, play, and show the figures."""
    options = tyro.cli(Options, prog="python -m benchmarks.swarm_widths")
    found = [width(each) for each in options.widths]
    raw = {"figure_1": [asdict(each) for each in found], "kept": grows(found)}
    tell(options, raw, lambda: table(found))
    return 0


def table(found: list[Width]) -> str:
    """The figures, a line a width."""
    idle = "  ".join(f"idle {bits}" for bits in CODECS)
    columns = "  ".join(f"{name:>13}" for name in found[0].percent)
    last = f"use grows with the width, and 8 bits are never worse: {verdict(grows(found))}"
    return "\n".join([f"d_model  compute ms  {idle}  {columns}", *(each.line() for each in found), last])


if __name__ == "__main__":
    sys.exit(main())
