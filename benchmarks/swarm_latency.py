"""What latency costs a swarm: `python -m benchmarks.swarm_latency`.

Tables 1 and 2 of SWARM, played by the swarm's own actors over emulated devices and shaped lines on the virtual clock,
so that every figure is the same on any machine. What the paper does not print of its devices follows from what it
does, as stated beside each table.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import tyro

from benchmarks.harness.results import Reported, tell
from benchmarks.swarm.actors import first, flow
from benchmarks.swarm.devices import Work
from benchmarks.swarm.gpipe import flush_seconds
from benchmarks.swarm.setting import Actors, Step
from transports.emulation.options import LinkProfile

LINE = 500e6 / 8
"""Bytes a second each way (section 4.1)."""
RTTS_MS = (0, 10, 50, 100, 200)
TABLE_1 = {
    "base": (18.0, 11.8, 4.88, 2.78, 1.53),
    "xxlarge": (32.1, 28.9, 20.1, 14.9, 10.1),
    "GPT-3": (82.1, 79.3, 70.3, 60.2, 48.5),
    "Ours": (89.5, 87.2, 79.5, 71.5, 59.2),
}
"""Utilisation in percent by round-trip time."""
DEPTHS = {"base": 12, "xxlarge": 12, "GPT-3": 12, "Ours": 4}
TABLE_2 = {
    "GPT-3": (168.3, 186.7, 164.5, 218.4),
    "xxlarge": (44.2, 48.2, 40.1, 108.8),
    "Ours": (432.2, 452.9, 420, 602.1),
}
"""Minutes a batch of SWARM without and with latency, and of GPipe."""
BATCH = 6250 // 4
"""Microbatches of xxlarge's batch; where the paper has four times as many, a batch's ends count for less than here."""
QUEUES = (2, 4, 8)
POINTS = 0.8
"""How far from the paper a cell of Table 1 may be."""
GPIPE_LOSES, SWARM_LOSES = 33, 12
"""Percent of Table 2: what GPipe loses at least, and the swarm at most."""


@dataclass(frozen=True)
class Options(Reported):
    """Say what latency costs a swarm."""

    models: tuple[str, ...] = tuple(TABLE_1)
    """Which of the paper's."""
    tables: tuple[int, ...] = (1, 2)
    """Which of them."""


@dataclass(frozen=True)
class Latency:
    """A cell of Table 1, in percent of utilisation.

    Args:
        paper, law: as printed and by the law.
        one: one microbatch in flight in all.
        queued: by microbatches in flight for each stage.
    """

    model: str
    rtt_ms: float
    paper: float
    law: float
    one: float
    queued: dict[int, float]

    @property
    def kept(self) -> bool:
        return abs(self.one - self.paper) <= POINTS and all(each > self.law for each in self.queued.values())

    def line(self) -> str:
        queued = "  ".join(f"{each:6.1f} ({each / self.law:4.1f} x)" for each in self.queued.values())
        alone = "  ".join(f"{each:6.2f}" for each in (self.paper, self.law, self.one))
        return f"{self.model:8} {self.rtt_ms:6.0f}  {alone}   {queued}  {verdict(self.kept)}"


def verdict(kept: bool) -> str:
    return "kept" if kept else "NOT KEPT"


def latency(model: str, at: int, queues: Sequence[int] = QUEUES) -> Latency:
    """The cell of a model and the round-trip time of this number."""
    rtt, column, depth = RTTS_MS[at] / 1e3, TABLE_1[model], DEPTHS[model]
    work, tensor = table_1_costs(model)
    law = 100 / (100 / column[0] + (2 * depth - 1) / depth / work.seconds * rtt)
    actors = Actors([[1.0]] * depth, work, 1, 1, rtt, LINE, tensor)
    alone = 100 * depth * flow(actors, 2, 8).utilisation
    queued = {each: 100 * _queued(replace(actors, slots=each * depth)).utilisation for each in queues}
    return Latency(model, RTTS_MS[at], column[at], law, alone, queued)


def _queued(actors: Actors) -> Step:
    """Whole rounds of all slots, after two in which the stages come apart."""
    return flow(actors, 2 * actors.slots, 2 * actors.slots)


def table_1_costs(model: str) -> tuple[Work, float]:
    """A stage's computing and a tensor's bytes, by the first two rows of a column.

    The law: 1/u = 1/u0 + a RTT. A microbatch asks 2 D - 1 times (the last stage for both passes at once), while devices
    compute for D c seconds: a = (2 D - 1) / (D c). A forward passes two tensors and a backward three, one after
    another, and all 5 D - 2 together take (1/u0 - 1) D c.
    """
    depth, (none, some) = DEPTHS[model], (100 / each for each in TABLE_1[model][:2])
    compute = (2 * depth - 1) / depth / ((some - none) / 0.01)
    tensor = (none - 1) * depth * compute / (5 * depth - 2) * LINE
    return Work(compute / 3, 2 * compute / 3), tensor


@dataclass(frozen=True)
class Cost:
    """A model of Table 2: percent by which 100 ± 50 ms a message make a batch longer.

    Args:
        swarm: until the last backward, as the paper counts.
        step: with all that a step's end takes.
    """

    model: str
    paper_gpipe: float
    gpipe: float
    paper_swarm: float
    swarm: float
    step: float

    @property
    def kept(self) -> bool:
        return round(self.gpipe) >= GPIPE_LOSES and self.swarm <= SWARM_LOSES

    def line(self) -> str:
        cells = (self.paper_gpipe, self.gpipe, self.paper_swarm, self.swarm, self.step)
        return f"{self.model:8} " + "  ".join(f"{each:8.1f}" for each in cells) + f"  {verdict(self.kept)}"


FLUSH, STAGES, WIDTH = 4, 4, 4
"""Microbatches of a flush of GPipe; stages of the pipeline; peers a stage."""
QUEUE, DELAY, JITTER = 12, 0.1, 0.05
"""Microbatches in flight for each of the swarm's peers; seconds of a message, more or less."""
FLUSHES = 100


def cost(model: str, batch: int = BATCH, queue: int = QUEUE, devices: tuple[Work, float] | None = None) -> Cost:
    """A row.

    Args:
        batch: microbatches of it.
        queue: in flight for each peer.
        devices: and a tensor's bytes; those of `table_2_costs` if not given.
    """
    before, after, pipe_before, pipe_after = TABLE_2[model]
    work, tensor = devices or table_2_costs(model)
    actors = Actors([[1.0] * WIDTH] * STAGES, work, queue * WIDTH * STAGES, batch, 0.0, LINE, tensor)
    swarm = [first(each) for each in (replace(actors, rtt=2 * DELAY, jitter=JITTER), actors)]
    return Cost(
        model,
        paper_gpipe=_more(pipe_after, pipe_before),
        gpipe=_gpipe_loses(work, tensor),
        paper_swarm=_more(after, before),
        swarm=_more(*(each.passes for each in swarm)),
        step=_more(*(each.seconds for each in swarm)),
    )


def table_2_costs(model: str) -> tuple[Work, float]:
    """Devices on which GPipe loses what it lost in the paper, and a tensor that takes as much of a stage as in Table 1.

    The longer they compute, the less they lose: halving the gap between too little and too much finds how long.
    """
    _, _, before, after = TABLE_2[model]
    work, tensor = table_1_costs(model)
    little, much = 1e-3, 10.0
    while much / little > 1.001:
        seconds = math.sqrt(little * much)
        tried = Work(seconds / 3, 2 * seconds / 3), tensor * seconds / work.seconds
        if _gpipe_loses(*tried) > _more(after, before):
            little = seconds
        else:
            much = seconds
    return tried


def _gpipe_loses(work: Work, tensor: float) -> float:
    """Percent by which latency makes a flush longer."""
    shapes = LinkProfile(DELAY, JITTER, LINE), LinkProfile(rate=LINE)
    return _more(*(flush_seconds(STAGES, FLUSH, work, shape, tensor, FLUSHES) for shape in shapes))


def _more(late: float, soon: float) -> float:
    return 100 * (late / soon - 1)


HEADS = {
    "table_1": f"{'model':8} RTT ms   paper     law     one   in flight a stage: {QUEUES} (of the law)",
    "table_2": f"{'model':8}    GPipe: paper, here    SWARM: paper, here, with the commit; percent longer",
}


def tables(options: Options) -> dict[str, Iterator[Latency] | Iterator[Cost]]:
    """What was asked for, played as it is read."""
    every: dict[int, Iterator[Latency] | Iterator[Cost]] = {
        1: (latency(model, at) for model in TABLE_1 if model in options.models for at in range(len(RTTS_MS))),
        2: (cost(model) for model in TABLE_2 if model in options.models),
    }
    return {f"table_{number}": every[number] for number in options.tables}


def main() -> int:
    """Read the flags, play, and say what it costs."""
    options = tyro.cli(Options, prog="python -m benchmarks.swarm_latency")
    found = {name: list(rows) for name, rows in tables(options).items()}
    raw = {k: [{**asdict(each), "kept": each.kept} for each in v] for k, v in found.items()}
    lines = [line for name, rows in found.items() for line in (HEADS[name], *(each.line() for each in rows))]
    tell(options, raw, lambda: "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
