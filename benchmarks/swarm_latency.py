"""What latency, slow lines and unequal devices cost a swarm: `python -m benchmarks.swarm_latency`.

Tables 1 to 4 and Figures 1 and 3 of SWARM: the real wiring over emulated devices and lines on the virtual clock, so
every figure is the same on any machine. Where the paper's own costs are not printed they are derived from what is, as
told beside each table.
"""

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import tyro

from benchmarks._swarm_actors import Actors, step
from benchmarks._swarm_model import Delay, Setting, Work, batch
from pipelined.pricer import Costs, price
from pipelined.recorder import record
from pipelined.schedules import Shape, find

MEGABIT = 1e6 / 8
LINE = 500 * MEGABIT
"""Bytes a second each way (section 4.1)."""
RTTS_MS = (0, 10, 50, 100, 200)
TABLE_1 = {
    "base": (18.0, 11.8, 4.88, 2.78, 1.53),
    "xxlarge": (32.1, 28.9, 20.1, 14.9, 10.1),
    "GPT-3": (82.1, 79.3, 70.3, 60.2, 48.5),
    "Ours": (89.5, 87.2, 79.5, 71.5, 59.2),
}
"""Utilisation in percent by round-trip time."""
TABLE_2 = {
    "GPT-3": (168.3, 186.7, 164.5, 218.4),
    "xxlarge": (44.2, 48.2, 40.1, 108.8),
    "Ours": (432.2, 452.9, 420, 602.1),
}
"""Minutes a batch of SWARM without and with latency, and of GPipe."""
SECONDS_PER_FLOP = 1 / 15e12
"""Of a V100 at these layers: 58 ms for xxlarge's 6.2e11 FLOP and a third more of recomputation, by Table 1."""


@dataclass(frozen=True)
class Options:
    """Say what latency, slow lines and unequal devices cost."""

    json: bool = False
    """Print one JSON object instead of tables."""


@dataclass(frozen=True)
class Latency:
    """A cell of Table 1.

    Args:
        paper, law: percent of utilisation, as printed and by the law.
        one, actors: with one microbatch in flight, in the model and by the swarm's own actors.
        queued: of every device with one stage a peer, by microbatches in flight for each.
    """

    model: str
    rtt_ms: float
    paper: float
    law: float
    one: float
    actors: float
    queued: dict[int, float]

    @property
    def within(self) -> bool:
        return abs(self.actors - self.paper) <= 0.8 and abs(self.one - self.law) <= 0.1

    def line(self) -> str:
        queued = "  ".join(f"{each:6.1f}" for each in self.queued.values())
        alone = "  ".join(f"{each:6.2f}" for each in (self.paper, self.law, self.one, self.actors))
        return f"{self.model:8} {self.rtt_ms:6.0f}  {alone}   {queued}"


DEPTHS = {"base": 12, "xxlarge": 12, "GPT-3": 12, "Ours": 4}
QUEUES = (1, 4, 16)


def latencies() -> list[Latency]:
    """Table 1: one microbatch in flight in all, then so many for each stage."""
    return [latency(model, at) for model in TABLE_1 for at in range(len(RTTS_MS))]


def latency(model: str, at: int, queues: Sequence[int] = QUEUES) -> Latency:
    """The cell of a model and the round-trip time of this number."""
    rtt, column, depth = RTTS_MS[at] / 1e3, TABLE_1[model], DEPTHS[model]
    work = table_1_work(model)
    slope = 2 / work.seconds
    law = 100 / (100 / column[0] + slope * rtt)
    alone = batch(Setting([[1.0]] * depth, work, LINE, 1, 20), lambda: rtt / 2).utilisation * depth
    queued = {each: 100 * batch(_queued(depth, work, each), lambda: rtt / 2).utilisation for each in queues}
    return Latency(model, RTTS_MS[at], column[at], law, 100 * alone, 100 * _by_actors(depth, work, rtt), queued)


def _by_actors(depth: int, work: Work, rtt: float) -> float:
    """The same by the real peers and trainer. They send five tensors a stage, which share the time of four."""
    tensor = 4 * work.forward_bytes[0] / 5
    taken = step(Actors([[1.0]] * depth, work, 1, 160 // depth, rtt, LINE, tensor))
    return taken.busy / taken.seconds


def _queued(depth: int, work: Work, each: int) -> Setting:
    """A pipeline that holds so many microbatches for each stage, filled and drained once in a long batch."""
    return Setting([[1.0]] * depth, work, LINE, each * depth, max(40, 8 * each) * depth)


def table_1_work(model: str) -> Work:
    """A stage's costs by the first two rows of a column.

    The law: 1/u = 1/u0 + a RTT. A stage answers twice a batch, so it computes for 2/a seconds, a third of them forward,
    and its messages take (1/u0 - 1) times that, a quarter each way and pass.
    """
    first, second = (100 / each for each in TABLE_1[model][:2])
    compute = 2 / ((second - first) / 0.01)
    message = (first - 1) * compute / 4 * LINE
    return Work(compute / 3, 2 * compute / 3, (message, message), (message, message))


@dataclass(frozen=True)
class Cost:
    """A model of Table 2: percent by which 100 ± 50 ms a message make a batch longer."""

    model: str
    paper_gpipe: float
    gpipe: float
    paper_swarm: float
    swarm: float

    @property
    def within(self) -> bool:
        return round(self.gpipe) >= 33 and self.swarm <= 12

    def line(self) -> str:
        cells = (self.paper_gpipe, self.gpipe, self.paper_swarm, self.swarm)
        return f"{self.model:8} " + "  ".join(f"{each:8.1f}" for each in cells)


MICROBATCHES, STAGES, WIDTH = 8, 4, 4
"""Of a flush of GPipe; of the pipeline; peers a stage."""
QUEUE, BATCH = 24, 6250
"""Microbatches in flight for each of the swarm's peers, and of a batch."""


def costs() -> list[Cost]:
    """Table 2, on devices on which GPipe loses what it lost in the paper."""
    return [cost(model) for model in TABLE_2]


def cost(model: str, microbatches: int = BATCH) -> Cost:
    """A row; a flush of GPipe has 2 (D - 1) hops and N + D - 1 slots one after another."""
    before, after, pipe_before, pipe_after = TABLE_2[model]
    lost = pipe_after / pipe_before - 1
    hops, slots = 2 * (STAGES - 1), MICROBATCHES + STAGES - 1
    seconds = hops * 0.1 / (slots * lost)
    setting = Setting(
        [[1.0] * WIDTH] * STAGES, Work(seconds / 3, 2 * seconds / 3), LINE, QUEUE * WIDTH * STAGES, microbatches
    )
    swarm = batch(setting, shaken(model)).seconds / batch(setting).seconds - 1
    return Cost(
        model,
        100 * lost,
        100 * _gpipe(seconds),
        100 * (after / before - 1),
        100 * swarm,
    )


def shaken(seed: str) -> Delay:
    """100 ms more or less by up to 50, for every message anew."""
    draw = random.Random(seed)
    return lambda: draw.uniform(0.05, 0.15)


def _gpipe(seconds: float) -> float:
    """Share by which 100 ms a hop make a flush of this project's own GPipe longer."""
    program = record(find("gpipe"), Shape(depth=STAGES, microbatches=MICROBATCHES))
    late, free = (price(program, Costs(seconds / 3, 2 * seconds / 3, p2p=each)).makespan for each in (0.1, 0.0))
    return late / free - 1


@dataclass(frozen=True)
class Fleet:
    """Tables 3 and 4: samples a second of a fleet over three stages."""

    name: str
    peers: int
    samples_per_s: float
    best: float

    def line(self) -> str:
        return f"{self.name:12} {self.peers:5}  {self.samples_per_s:8.2f}  {self.best:8.2f}"


T4, A100 = 19.2 / 400, 25.5 / 56
"""Samples a second of one device, all three stages (Table 3, best case)."""


def fleets() -> list[Fleet]:
    """A tenth of the paper's T4s and A100s, apart and together; newcomers take turns among the stages."""
    slow, fast = [1.0] * 13, [A100 / T4] * 2
    return [_fleet("T4", slow), _fleet("A100", fast), _fleet("T4 & A100", slow + fast)]


def _fleet(name: str, stage: Sequence[float]) -> Fleet:
    seconds = 1 / (3 * T4)
    answer = 4096 * 2048.0  # one 8-bit value for each feature of 2,048 tokens
    work = Work(seconds / 4, 3 * seconds / 4, (answer, answer), (2 * answer, answer))
    taken = batch(Setting([stage] * 3, work, LINE, 12 * len(stage), 1500), shaken(name))
    return Fleet(name, 3 * len(stage), 1500 / taken.seconds, sum(stage) * 3 * T4)


def together(done: Sequence[Fleet]) -> float:
    """The mixed fleet's part of the sum of the others."""
    slow, fast, mixed = (each.samples_per_s for each in done)
    return mixed / (slow + fast)


@dataclass(frozen=True)
class Width:
    """A point of Figure 1: percent of utilisation at 500 Mb/s without latency.

    Args:
        one, one_8bit: one microbatch in flight for each stage, 16-bit and 8-bit.
        queued, queued_8bit: 8 in flight.
    """

    d_model: int
    one: float
    one_8bit: float
    queued: float
    queued_8bit: float

    def line(self) -> str:
        cells = "  ".join(f"{each:8.1f}" for each in (self.one, self.one_8bit, self.queued, self.queued_8bit))
        return f"{self.d_model:7}  {cells}"


WIDTHS = (256, 512, 768, 1024, 2048, 4096, 8192, 12288, 16384)


def widths() -> list[Width]:
    """Figure 1: a transformer layer a stage, 512 tokens a microbatch."""
    return [Width(each, *(_at_width(each, *how) for how in ((2, 1), (1, 1), (2, 8), (1, 8)))) for each in WIDTHS]


def _at_width(width: int, bytes_each: int, in_flight: int) -> float:
    """A layer has 12 d² parameters: 2 FLOP for each and token forward, and 4 + 2 backward with recomputation.

    A backward's question is the stage's inputs and the gradients of its outputs.
    """
    tensor, flop = 512.0 * width * bytes_each, 2 * 12 * width**2 * 512.0
    work = Work(flop * SECONDS_PER_FLOP, 3 * flop * SECONDS_PER_FLOP, (tensor, tensor), (2 * tensor, tensor))
    return 100 * batch(Setting([[1.0]] * 4, work, LINE, 4 * in_flight, 160)).utilisation


def tables() -> dict[str, object]:
    """All of it."""
    mixed = fleets()
    return {
        "table_1": latencies(),
        "table_2": costs(),
        "tables_3_4": mixed,
        "mixed": together(mixed),
        "figure_1": widths(),
    }


def show(found: dict[str, object]) -> None:
    """As tables."""
    heads = {
        "table_1": f"{'model':8} RTT ms   paper     law     one  actors   in flight a stage: {QUEUES}",
        "table_2": f"{'model':8}    GPipe: paper, here  SWARM: paper, here",
        "tables_3_4": f"{'fleet':12} peers  samples/s      best",
        "figure_1": "d_model   1, 16 bit  1, 8 bit  8, 16 bit  8, 8 bit",
    }
    for name, head in heads.items():
        print("\n".join([head, *(each.line() for each in found[name]), ""]))
    print(f"the mixed fleet does {found['mixed']:.1%} of the sum of its parts")


def main() -> int:
    """Read the flags, play, and say what it costs."""
    options = tyro.cli(Options, prog="python -m benchmarks.swarm_latency")
    found = tables()
    if options.json:
        print(json.dumps({k: [asdict(each) for each in v] if isinstance(v, list) else v for k, v in found.items()}))
    else:
        show(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
