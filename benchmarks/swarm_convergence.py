"""A tiny language model trained by a swarm beside one process: `python -m benchmarks.swarm_convergence`.

The plays, byte by byte; 8 bits between stages or none, peers that die and come or none, a narrow stream between stages
or the whole, each with the same seeds as a plain loop over the same stages, which finds the same data. Real actors and
torch stages on the virtual clock, so the losses are the same wherever it runs; trainings share the machine's cores.
With --keep what was trained is kept: a run that was broken off goes on, and seeds can be trained one by one.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import torch
import tyro

from apps.common.lm.data.ngram import score_ngrams
from apps.common.lm.data.text import Text, read_text
from apps.swarm.config import TrainingConfig
from benchmarks.harness.ranks import check, program
from benchmarks.harness.results import Reported, tell
from benchmarks.swarm.convergence_table import HEAD, LAST, Arm, Row, rows_of
from benchmarks.swarm.language_model import Lesson, Trained, alone, together
from pipelined.errors import UsageError

EIGHT = "blockwise8"
ARMS: Mapping[str, Arm] = {
    "one process": Arm("one process", swarm=False),
    "summed backwards": Arm("one process", swarm=False, backwards=True),
    "swarm": Arm("one process"),
    "swarm, churn": Arm("one process", churn=True),
    "swarm, 8-bit": Arm("one process", codec=EIGHT),
    "swarm, 8-bit, churn": Arm("one process", codec=EIGHT, churn=True),
    "the same, sums too": Arm("one process", codec=EIGHT, churn=True, sums=EIGHT),
    "bottleneck": Arm("bottleneck", swarm=False, squeeze="bottleneck"),
    "swarm, 8-bit, churn, bottleneck": Arm("bottleneck", codec=EIGHT, churn=True, squeeze="bottleneck"),
    "maxout": Arm("maxout", swarm=False, squeeze="maxout"),
    "swarm, 8-bit, churn, maxout": Arm("maxout", codec=EIGHT, churn=True, squeeze="maxout"),
}
TOLD_EVERY = 50
"""Steps from one word about a training to the next."""


@dataclass(frozen=True)
class Options(Reported):
    """Compare losses."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Of initial values and data."""
    steps: int = 300
    """Steps of each training."""
    layers: int = 2
    """Transformer layers."""
    d_model: int = 64
    """Width of the model."""
    seq: int = 32
    """Bytes a sequence."""
    batch: int = 16
    """Sequences a step."""
    microbatch: int = 4
    """Sequences a microbatch."""
    lr: float = 8e-3
    """Highest learning rate."""
    scored: int = 1 << 16
    """Bytes of validation text that the end is scored on."""
    replicas: int = 2
    """Peers that each of the three stages begins with."""
    churn_s: float = 3.0
    """Virtual seconds from one death to the next, some twelve steps."""
    workers: int = 2
    """Trainings at once, a process each."""
    keep: Path | None = None
    """Directory for what was trained; what is there already is not trained again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(steps=[self.steps / LAST], replicas=[self.replicas], workers=[self.workers])
        check(least=1 if self.keep else 2, seeds=[len(self.seeds)])

    def settings(self, arm: Arm, seed: int) -> TrainingConfig:
        """What is trained."""
        return TrainingConfig(
            layers=self.layers,
            d_model=self.d_model,
            squeeze=arm.squeeze,
            stages=3,
            microbatch=self.microbatch,
            batch=self.batch,
            seq=self.seq,
            steps=self.steps,
            lr=self.lr,
            warmup=self.steps // 20,
            seed=seed,
            compress=arm.codec,
            compress_sums=arm.sums,
            lease=1.0,
            rebalance=0.0,
        )

    def decisive(self) -> dict[str, object]:
        """What decides the result of one training."""
        beside = {"seeds", "workers", "keep", "json", "save"}
        return {name: value for name, value in asdict(self).items() if name not in beside}


def text_of(options: Options) -> Text:
    """The plays, and so much of what is kept back of them."""
    text = read_text((), "bytes")
    return replace(text, validation=text.validation[: options.scored])


def train(options: Options, name: str, seed: int) -> Trained:
    """One training, in a process of its own."""
    torch.set_num_threads(1)
    arm = ARMS[name]
    lesson = Lesson.of(options.settings(arm, seed), text_of(options))

    def tell(step: int, loss: float) -> None:
        if step % TOLD_EVERY == 0:
            print(f"{name}, seed {seed}: step {step}, loss {loss:.4f}", file=sys.stderr, flush=True)

    if not arm.swarm:
        return alone(lesson, tell, arm.backwards)
    return together(lesson, tell, options.replicas, options.churn_s if arm.churn else 0.0)


def found(options: Options, name: str, seed: int) -> Trained:
    """What is kept of a training, or the training, which is kept then.

    Raises:
        UsageError: what is kept was trained otherwise.
    """
    if options.keep is None:
        return train(options, name, seed)
    file = options.keep / f"{name.replace(', ', '-').replace(' ', '-')}.{seed}.json"
    if file.exists():
        kept = json.loads(file.read_text())
        if kept["options"] != options.decisive():
            raise UsageError(f"{file} was trained otherwise ({kept['options']}); give another directory to --keep")
        return Trained(**kept["trained"])
    trained = train(options, name, seed)
    partial = file.with_suffix(".part")
    partial.write_text(json.dumps({"options": options.decisive(), "trained": asdict(trained)}))
    partial.rename(file)
    return trained


def all_found(options: Options) -> dict[tuple[str, int], Trained]:
    """Every training, seed by seed, as many at once as there are workers."""
    keys = [(name, seed) for seed, name in product(options.seeds, ARMS)]
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        results = pool.map(found, [options] * len(keys), *zip(*keys, strict=True))
        return dict(zip(keys, results, strict=True))


def report(options: Options, rows: Sequence[Row]) -> str:
    """The table, and what it is to be held against."""
    text = text_of(options)
    grams = score_ngrams(text.train, text.validation, options.seq, text.tokenizer.vocab_size)
    beside = ", ".join(f"{name} {loss:.4f}" for name, loss in grams.items())
    kept = all(row.within for row in rows)
    verdict = f"{'all' if kept else 'NOT all'} within the seeds' standard deviation and 1 %"
    return "\n".join([HEAD, *(row.line() for row in rows), f"on the same text: {beside}", verdict])


def main() -> None:
    """Read the flags, train, and compare."""
    options = tyro.cli(Options, prog="python -m benchmarks.swarm_convergence")
    trained = all_found(options)
    if len(options.seeds) == 1:
        print(f"seed {options.seeds[0]} is in {options.keep}; to compare, give two seeds or more")
        return
    rows = rows_of(ARMS, trained, options.seeds)
    curves = [{"arm": arm, "seed": seed, **asdict(each)} for (arm, seed), each in trained.items()]
    figures = [{**asdict(row), "within": row.within} for row in rows]
    raw = {**options.decisive(), "seeds": options.seeds, "rows": figures, "trained": curves}
    tell(options, raw, lambda: report(options, rows))


if __name__ == "__main__":
    sys.exit(program(main))
