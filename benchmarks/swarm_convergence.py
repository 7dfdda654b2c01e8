"""A tiny language model trained by a swarm beside one process: `python -m benchmarks.swarm_convergence`.

The plays, byte by byte; 8 bits between stages or none, peers that die and come or none, each with the same seeds as the
plain loop, which finds the same data. Real actors and torch stages on the virtual clock, so the losses are the same
wherever it runs; the seeds share the machine's cores.
"""

import json
import os
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context

import torch
import tyro

from apps._swarm_config import Subject
from apps._text import read_text
from benchmarks._ranks import check, program
from benchmarks._swarm_lm import Lesson, Trained, alone, together

PLAIN = "one process"
ARMS: Mapping[str, tuple[str, bool]] = {
    "swarm": ("none", False),
    "swarm, churn": ("none", True),
    "swarm, 8-bit": ("blockwise8", False),
    "swarm, 8-bit, churn": ("blockwise8", True),
}
"""Codec between stages, and whether peers die and come."""
LAST = 20
"""Steps at the end whose mean is the final loss, and steps that a curve is smoothed over."""
PROMISED = 0.01
"""Of the final loss, with 8 bits."""


@dataclass(frozen=True)
class Options:
    """Compare losses."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Of initial values and data."""
    steps: int = 120
    """Steps of each training."""
    layers: int = 2
    """Transformer layers."""
    d_model: int = 64
    """Width of the model."""
    replicas: int = 2
    """Peers of each of the three stages."""
    churn_s: float = 3.0
    """Virtual seconds from one death to the next, some eight steps."""
    workers: int = 2
    """Trainings at once, a process each."""
    json: bool = False
    """Print one JSON object, with every loss, instead of a table."""

    def __post_init__(self) -> None:
        check(steps=[self.steps / LAST], replicas=[self.replicas], workers=[self.workers], seeds=[len(self.seeds)])

    def subject(self, seed: int, codec: str) -> Subject:
        """What is trained."""
        return Subject(
            layers=self.layers,
            d_model=self.d_model,
            stages=3,
            seq=32,
            steps=self.steps,
            warmup=self.steps // 5,
            seed=seed,
            compress=codec,
            lease=1.0,
            rebalance=0.0,
        )


def train(options: Options, arm: str, seed: int) -> Trained:
    """One training, in a process of its own."""
    torch.set_num_threads(1)
    codec, churn = ARMS.get(arm, ("none", False))
    lesson = Lesson.of(options.subject(seed, codec), read_text((), "bytes"))
    if arm == PLAIN:
        return Trained(alone(lesson), 0, 0)
    return together(lesson, options.replicas, options.churn_s if churn else 0.0)


@dataclass(frozen=True)
class Row:
    """One way to train, over all seeds.

    Args:
        finals: the final loss by seed.
        farthest: by seed, how far its smoothed curve is from the plain one's at most, in nats.
        died: peers killed, all seeds together.
    """

    name: str
    finals: tuple[float, ...]
    plain: tuple[float, ...]
    farthest: tuple[float, ...]
    died: int

    @property
    def off(self) -> float:
        """The mean final loss beside the plain one's, as a share of it."""
        return statistics.mean(self.finals) / statistics.mean(self.plain) - 1

    def within(self, noise: float) -> bool:
        """The curve of no seed leaves the plain one by more than seeds differ, and the loss is within the promise."""
        return max(self.farthest) <= noise and abs(self.off) <= PROMISED

    def line(self) -> str:
        finals = " ".join(f"{each:.4f}" for each in self.finals)
        mean = statistics.mean(self.finals)
        return f"{self.name:20} {mean:.4f} ({finals})  {self.off:+8.3%}  {max(self.farthest):.5f}  {self.died:4}"


HEAD = f"{'':20} final loss (by seed)             of plain  farthest  died"


def smoothed(losses: Sequence[float]) -> list[float]:
    """Means of `LAST` steps."""
    return [statistics.fmean(losses[end - LAST : end]) for end in range(LAST, len(losses) + 1)]


def rows_of(found: Mapping[tuple[str, int], Trained], seeds: Iterable[int]) -> list[Row]:
    """A row for each way, the plain one first."""
    seeds = list(seeds)
    curves = {key: smoothed(trained.losses) for key, trained in found.items()}
    plain = tuple(curves[PLAIN, seed][-1] for seed in seeds)
    return [
        Row(
            name,
            tuple(curves[name, seed][-1] for seed in seeds),
            plain,
            tuple(_farthest(curves[name, seed], curves[PLAIN, seed]) for seed in seeds),
            sum(found[name, seed].died for seed in seeds),
        )
        for name in (PLAIN, *ARMS)
    ]


def _farthest(one: Sequence[float], other: Sequence[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def noise_of(plain: Row) -> float:
    """How far seeds differ: the standard deviation of the final loss."""
    return statistics.stdev(plain.finals) if len(plain.finals) > 1 else 0.0


def main() -> None:
    """Read the flags, train, and compare."""
    options = tyro.cli(Options, prog="python -m benchmarks.swarm_convergence")
    keys = list(product((PLAIN, *ARMS), options.seeds))
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        found = dict[tuple[str, int], Trained]()
        for key, trained in zip(keys, pool.map(train, [options] * len(keys), *zip(*keys, strict=True)), strict=True):
            found[key] = trained
            print(*key, smoothed(trained.losses)[-1], trained.died, file=sys.stderr, flush=True)
    rows = rows_of(found, options.seeds)
    noise = noise_of(rows[0])
    if options.json:
        losses = [{"arm": arm, "seed": seed, **asdict(each)} for (arm, seed), each in found.items()]
        told = [{**asdict(row), "off": row.off, "within": row.within(noise)} for row in rows]
        print(json.dumps({**asdict(options), "noise": noise, "rows": told, "trained": losses}))
        return
    print("\n".join([HEAD, *(row.line() for row in rows)]))
    kept = all(row.within(noise) for row in rows)
    print(
        f"seeds differ by {noise:.4f} (standard deviation); {'all within' if kept else 'NOT all within'} that and 1 %"
    )


if __name__ == "__main__":
    sys.exit(program(main))
