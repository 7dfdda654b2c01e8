"""Ravnest on handwritten digits: `python -m benchmarks.ravnest_digits` (extra images).

`python -m apps.ravnest local --preset digits`: two clusters of three processes over TCP train a residual network with
BatchNorm, whose head reads the stem past all blocks; the average at the end is scored on held-out images. A plain loop
in this process trains the same network on the same images. Updates a second are those of all clusters together.
"""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from subprocess import run
from tempfile import TemporaryDirectory
from typing import Any

import torch
import tyro

from apps.common.images.image_training import resize
from apps.ravnest.families.digits import DIGITS, DIGITS_MODEL, Digits
from apps.ravnest.families.digits_model import SHAPE, count_correct
from apps.ravnest.flags.config import RavnestConfig, RavnestTask
from apps.ravnest.task_training import training_of
from benchmarks.harness.ranks import ROOT, check
from benchmarks.harness.results import Reported, tell
from pipelined.state.stages.whole_model import find_whole_model
from pipelined.training.optimizer import update


@dataclass(frozen=True)
class Options(Reported):
    """Train on digits."""

    nodes: int = 3
    """Nodes, a process each."""
    clusters: int = 2
    """Clusters that they form."""
    steps: int = 200
    """Steps of four microbatches, of all clusters together."""
    microbatch: int = 16
    """Images of a microbatch."""
    seed: int = 0
    """Of initial values and the order of the images."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(least=8, steps=[self.steps])

    @property
    def flags(self) -> list[str]:
        """What Ravnest trains, as flags."""
        sizes = ["--microbatch", self.microbatch, "--batch", 4 * self.microbatch, "--steps", self.steps]
        return [*map(str, ["--preset", DIGITS, *sizes, "--seed", self.seed])]

    @property
    def config(self) -> RavnestConfig:
        """The same."""
        rows = self.microbatch
        return RavnestConfig(preset=DIGITS, microbatch=rows, batch=4 * rows, steps=self.steps, seed=self.seed)


def clusters(options: Options, digits: Digits) -> dict[str, Any]:
    """Train by processes: the images that the average gets right, and updates a second."""
    with TemporaryDirectory() as kept:
        saved, metrics = Path(kept) / "saved", Path(kept) / "metrics.jsonl"
        words = ["local", "--nodes", str(options.nodes), "--clusters", str(options.clusters), "--lease", "60"]
        words += ["--checkpoint", str(saved), "--metrics", str(metrics), *options.flags]
        run([sys.executable, "-m", "apps.ravnest", *words], cwd=ROOT, check=True, stdout=sys.stderr)
        values = dict(find_whole_model([saved]).values)
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    rate = 0.0
    for cluster in range(options.clusters):
        seconds = [row["step_s"] for row in rows if row["cluster"] == cluster]
        rate += options.config.microbatches / fmean(seconds[len(seconds) // 4 : len(seconds) * 3 // 4])
    return {"right": right(digits, values), "updates_per_s": rate}


def plain(options: Options, digits: Digits) -> dict[str, Any]:
    """The same by a plain loop over microbatches."""
    training = training_of(RavnestTask(options.config, DIGITS_MODEL.classes, digits.digest), digits)
    module = training.model.build(range(training.model.layers), torch.float32, "cpu", seed=training.seed)
    optimizer = training.optimizer_settings.build(dict(module.named_parameters()))
    begun = time.perf_counter()
    for step in range(training.steps):
        for microbatch in range(training.microbatches):
            optimizer.zero_grad()
            output = module(training.feed.inputs(step, microbatch))
            training.model.loss(output, training.feed.targets(step, microbatch)).backward()
            update(optimizer, training.optimizer_settings.rate(step), 1.0)
    rate = training.steps * training.microbatches / (time.perf_counter() - begun)
    return {"right": right(digits, module.state_dict()), "updates_per_s": rate}


def right(digits: Digits, values: dict[str, torch.Tensor]) -> int:
    """The held-out images that a network with these values gets right."""
    return count_correct(values, resize(digits.held_out, torch.arange(len(digits.held_out)), SHAPE))


def table(found: dict[str, Any]) -> str:
    """The figures as text."""
    lines = [f"{'':<12} {'right':>6} {'share':>6} {'updates/s':>10}"]
    for name in ("clusters", "plain loop"):
        row = found[name]
        lines.append(
            f"{name:<12} {row['right']:>6} {row['right'] / found['held_out']:>6.1%} {row['updates_per_s']:>10.1f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run it as the flags say."""
    options = tyro.cli(Options, prog="python -m benchmarks.ravnest_digits")
    torch.set_num_threads(1)
    digits = Digits.read()
    found: dict[str, Any] = {"clusters": clusters(options, digits), "plain loop": plain(options, digits)}
    found["held_out"] = len(digits.held_out)
    tell(options, found, lambda: table(found))


if __name__ == "__main__":
    main()
