"""What a swarm makes of unequal devices: `python -m benchmarks.swarm_fleets`.

Tables 3 and 4 of SWARM (slow and fast devices apart and together) and the shares of work that unequal peers get, played
by the swarm's own actors on the virtual clock: every figure is the same on any machine.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain

import tyro

from benchmarks.harness.results import Reported, tell
from benchmarks.swarm.actors import first, flow, step
from benchmarks.swarm.devices import CodingTime, Work
from benchmarks.swarm.setting import Actors, Step
from benchmarks.swarm_latency import DELAY, JITTER, LINE, verdict

STAGES = 3
T4, A100 = 19.2 / 400, 25.5 / 56
"""Samples a second of one device, all three stages (Table 3, best case)."""
T4S, A100S = 13, 2
"""Of each stage: a tenth of the paper's 400 and 56 over three stages."""
BATCH = 1638
"""Samples of a step: a tenth of the paper's, too (Appendix G)."""
VALUES = 2048 * 4096
"""Of a tensor: tokens by features."""
PARAMETERS = {"Table 3": 201e6, "Table 4": 16 * 201e6}
"""Of a stage with sixteen layers that share theirs, and with sixteen that do not (Table 6)."""
PIECE = 16 << 20
"""Bytes of a sum that go at once: four of the system's pieces are played as one, or Table 4 would take half an hour."""
CODING = CodingTime(out=1 / 0.4e9, back=1 / 0.725e9)
"""A core codes 1.6 GB a second of float32 out, and 2.9 back."""
CODED_BYTES = 1 + 4 / 4096
"""Of a number in 8 bits, with its block's scale."""
TOGETHER, POINTS = 0.85, 2.0
"""What a mixed fleet does of the sum of its parts at least; how far a share may be from a speed's."""
SPEEDS = ((1.0, 2.0), (1.0, 1.0, 1.0, 4.0), (1.0, 2.0, 4.0, 8.0))


@dataclass(frozen=True)
class Options(Reported):
    """Say what a swarm makes of unequal devices."""

    tables: tuple[str, ...] = (*PARAMETERS, "shares")
    """Which of them."""
    slots: int = 6
    """Microbatches under way for each peer of a fleet."""
    delayed_updates: bool = False
    """Apply fleets' updates one step late, so that the next step is computed while one is summed."""
    trainers: tuple[int, ...] = (1, 3)
    """Of the swarms with counted shares."""


@dataclass(frozen=True)
class Fleet:
    """A fleet over three stages.

    Args:
        samples_per_s: of a step, until its last backward.
        steps_per_s: the same with the sums and the commit.
        limit: what that can be at most, see `limit_of`.
        best: of its devices, without any network.
    """

    table: str
    name: str
    peers: int
    samples_per_s: float
    steps_per_s: float
    limit: float
    best: float

    def line(self) -> str:
        cells = "  ".join(f"{each:8.2f}" for each in (self.samples_per_s, self.steps_per_s, self.limit, self.best))
        return (
            f"{self.table:8} {self.name:10} {self.peers:5}  {cells}   {self.steps_per_s / self.limit:.1%} of the limit"
        )


@dataclass(frozen=True)
class Together:
    """What a mixed fleet does of the sum of its parts: until the last backward, to the commit, and there at most."""

    table: str
    passes: float
    steps: float
    limit: float

    @property
    def kept(self) -> bool:
        return self.steps >= TOGETHER

    def line(self) -> str:
        with_sums = f"with sums and commits {self.steps:.1%} (at most {self.limit:.1%})"
        return f"{self.table:8} together {self.passes:.1%}, {with_sums}  {verdict(self.kept)}"


def fleets(table: str, slots: int, delayed: bool = False) -> Iterator[Fleet | Together]:
    """Slow devices, fast ones, and all of them; and the last beside the others."""
    slow, fast = [1.0] * T4S, [A100 / T4] * A100S
    done = []
    for name, stage in (("T4", slow), ("A100", fast), ("T4 & A100", slow + fast)):
        done.append(_fleet(table, name, stage, slots, delayed))
        yield done[-1]
    yield together(done)


def _fleet(table: str, name: str, stage: Sequence[float], slots: int, delayed: bool) -> Fleet:
    play = first if len(set(stage)) == 1 and not delayed else step  # trainers have to learn the speeds first
    taken = play(replace(fleet_actors([stage] * STAGES, slots, PARAMETERS[table]), delayed=delayed))
    passes, steps, best = BATCH / taken.passes, BATCH / taken.seconds, sum(stage) * STAGES * T4
    sums = sums_seconds(PARAMETERS[table], len(stage))
    return Fleet(table, name, STAGES * len(stage), passes, steps, limit_of(passes, best, sums, delayed), best)


def sums_seconds(parameters: float, peers: int) -> float:
    """What a line of each of a stage's peers is busy with, each way, for one sum in 8 bits of its parameters."""
    return 2 * (peers - 1) / peers * parameters * CODED_BYTES / LINE


def limit_of(passes: float, best: float, sums: float, delayed: bool) -> float:
    """Samples a second that no step can do more of on these lines, from its first microbatch to its commit.

    Args:
        passes: samples a second until the last backward, as measured: before it there is no sum to send.
        best: of the devices, without any network.
        sums: seconds of a line.
        delayed: sums go beside the next step.
    """
    return min(best, BATCH / sums) if delayed else 1 / (1 / passes + sums / BATCH)


def fleet_actors(stages: Sequence[Sequence[float]], slots: int, parameters: float, batch: int = BATCH) -> Actors:
    """A fleet's swarm: 8 bits everywhere, 500 Mb/s each way, 100 ± 50 ms."""
    seconds = 1 / (STAGES * T4)
    return Actors(
        stages,
        Work(seconds / 4, 3 * seconds / 4),
        slots * sum(map(len, stages)),
        batch,
        2 * DELAY,
        LINE,
        4.0 * VALUES,
        JITTER,
        codec="blockwise8",
        most_numbers=1 << 12,
        coding=CODING,
        sums=4 * parameters,
        sums_codec="blockwise8",
        piece=PIECE,
    )


def together(done: Sequence[Fleet]) -> Together:
    """The mixed fleet beside the sum of the others."""
    slow, fast, mixed = done
    passes = mixed.samples_per_s / (slow.samples_per_s + fast.samples_per_s)
    steps = mixed.steps_per_s / (slow.steps_per_s + fast.steps_per_s)
    return Together(mixed.table, passes, steps, mixed.limit / (slow.limit + fast.limit))


@dataclass(frozen=True)
class Shares:
    """What peers of these speeds were asked for, in percent of their stage.

    Args:
        busy: percent of the time that devices computed.

    Attributes:
        most: points that any peer of any stage is from its speed's share.
    """

    speeds: tuple[float, ...]
    trainers: int
    percent: tuple[tuple[float, ...], ...]
    busy: float

    @property
    def most(self) -> float:
        ideal = [100 * speed / sum(self.speeds) for speed in self.speeds]
        return max(abs(got - due) for stage in self.percent for got, due in zip(stage, ideal, strict=True))

    @property
    def kept(self) -> bool:
        return self.most <= POINTS

    def line(self) -> str:
        stages = "  |  ".join(" ".join(f"{each:5.1f}" for each in stage) for stage in self.percent)
        speeds = " ".join(f"{each:g}" for each in self.speeds)
        return f"{speeds:8} {self.trainers:2} trainers  {stages}  off by {self.most:.2f}  {verdict(self.kept)}"


def shares(speeds: Sequence[float], trainers: int, rounds: int = 40) -> Shares:
    """Two stages of such peers, 10 ms there and back, in the middle of a step: counts of whole rounds of all slots.

    Each way takes half as long more or less: where nothing varies, forwards and backwards can fall into a pattern in
    which one peer gets only one of them, and counts say little of work.
    """
    slots = 4 * len(speeds)
    actors = Actors([speeds] * 2, Work(0.05, 0.1), 2 * slots // trainers, 1, 0.01, jitter=0.0025, trainers=trainers)
    taken = flow(actors, rounds * slots, rounds * slots)
    return Shares(tuple(speeds), trainers, _percent(taken, len(speeds)), 100 * taken.utilisation)


def _percent(taken: Step, width: int) -> tuple[tuple[float, ...], ...]:
    counts = [[taken.answers.get(f"peer-{stage}-{at}", 0) for at in range(width)] for stage in range(2)]
    return tuple(tuple(100 * each / sum(stage) for each in stage) for stage in counts)


def tables(options: Options) -> dict[str, Iterator[Fleet | Together | Shares]]:
    """What was asked for, played as it is read."""
    every = {table: fleets(table, options.slots, options.delayed_updates) for table in PARAMETERS}
    every["shares"] = (shares(speeds, trainers) for speeds in SPEEDS for trainers in options.trainers)
    return {table: every[table] for table in options.tables}


def _plain(row: Fleet | Together | Shares) -> dict[str, object]:
    return asdict(row) if isinstance(row, Fleet) else {**asdict(row), "kept": row.kept}


def main() -> int:
    """Read the flags, play, and say what came of it."""
    options = tyro.cli(Options, prog="python -m benchmarks.swarm_fleets")
    found = {name: list(rows) for name, rows in tables(options).items()}
    raw = {name: [_plain(each) for each in rows] for name, rows in found.items()}
    head = f"{'table':8} {'fleet':10} peers  samples/s  with sums  limit     best"
    tell(options, raw, lambda: "\n".join([head, *(each.line() for each in chain.from_iterable(found.values()))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
