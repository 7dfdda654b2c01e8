"""What Ravnest's clusters learn beside synchronous training: `python -m benchmarks.ravnest_learning`.

The plays, byte by byte. One process updates after each step of four microbatches. A cluster of three nodes updates
after each microbatch, on the same data. Two clusters halve the time, and are averaged beside training. Real actors and
torch stages on the virtual clock, so the losses are the same wherever it runs. With --keep what was trained is kept: a
run that was broken off goes on.
"""

import json
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch
import tyro
from torch import nn

from apps.common.lm.data.batches import validation_windows
from apps.common.lm.data.text import Text, read_text
from apps.ravnest.flags.config import RavnestConfig, RavnestTask
from apps.ravnest.task_training import training_of
from benchmarks.harness.ranks import check, program
from benchmarks.harness.results import Reported, tell
from benchmarks.ravnest.party import Party
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.stage.orders import OrderDirectory, read_orders
from pipelined.ravnest.stage.saving import SaveSettings
from pipelined.state.stages.store import DiskStore
from pipelined.state.stages.whole_model import find_whole_model
from pipelined.training.optimizer import OptimizerConfig, clip_factor, update

SECONDS = {"forward": 0.1, "backward": 0.2}
DIRECTORY_S = 0.22
"""How far away the directory is, so that a round lasts about four updates."""
SCORED_ROWS = 64


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Args:
        clusters: of three nodes each; 0: synchronously, in one process.
        part: of the steps that are trained.
        beside: the way that it is compared with; at most `most` of it is promised, or at least `below` nats less.
    """

    clusters: int
    part: float = 1.0
    weights: str = "kept"
    beside: str = ""
    most: float = 0.0
    below: float = 0.0


ARMS: Mapping[str, Arm] = {
    "synchronous": Arm(0),
    "one cluster": Arm(1, beside="synchronous", most=1.015),
    "one cluster, newest": Arm(1, weights="newest", beside="one cluster", most=1.015),
    "one cluster, half": Arm(1, part=0.5),
    "two clusters": Arm(2, beside="one cluster, half", below=0.02),
    "two clusters, as many samples": Arm(2, beside="synchronous", most=1.07),
}
SAME = {"two clusters, as many samples": "two clusters"}
"""What is trained once, and held to two."""


@dataclass(frozen=True)
class Options(Reported):
    """Compare losses."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Of initial values and data."""
    steps: int = 300
    """Steps of four microbatches of four sequences."""
    lr: float = 2e-3
    """Highest rate of an update by one microbatch."""
    synchronous_lr: float = 8e-3
    """Highest rate of an update by a step; it is clipped to a norm of 1."""
    scored: int = 1 << 16
    """Bytes of validation text that the end is scored on."""
    workers: int = 1
    """Trainings at once, a process each."""
    keep: Path | None = None
    """Directory for what was trained; what is there already is not trained again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(steps=[self.steps / 40], workers=[self.workers], seeds=[len(self.seeds)])

    def decisive(self) -> dict[str, object]:
        """What decides the result of one training."""
        beside = {"seeds", "workers", "keep", "json", "save"}
        return {name: value for name, value in asdict(self).items() if name not in beside}


def training(options: Options, arm: Arm, seed: int, text: Text) -> RavnestTraining:
    """What is trained."""
    steps = round(options.steps * arm.part)
    sizes = {"layers": 2, "d_model": 64, "seq": 32, "microbatch": 4, "batch": 16}
    settings = RavnestConfig(**sizes, steps=steps, warmup=steps // 20, seed=seed, lr=options.lr)
    task = RavnestTask(replace(settings, weights=arm.weights), text.tokenizer.vocab_size, text.digest)
    return training_of(task, text)


def trained(options: Options, name: str, seed: int) -> dict[str, Any]:
    """One training, in a process of its own: its loss, and figures of its rounds."""
    torch.set_num_threads(1)
    text, arm = read_text((), "bytes"), ARMS[name]
    what = training(options, arm, seed, text)
    inputs, targets = validation_windows(text.validation[: options.scored].astype("int64"), what.sequence)
    module = what.model.build(range(what.model.layers), torch.float32, "cpu", seed=seed)
    extra = by_clusters(what, arm.clusters, module) if arm.clusters else synchronous(options, what, module)
    losses = list[float]()
    with torch.no_grad():
        for start in range(0, len(inputs) - SCORED_ROWS + 1, SCORED_ROWS):
            rows = (torch.from_numpy(each[start : start + SCORED_ROWS]) for each in (inputs, targets))
            x, y = rows
            losses.append(float(what.model.loss(module(x), y)))
    return {"loss": fmean(losses), **extra}


def synchronous(options: Options, what: RavnestTraining, module: nn.Module) -> dict[str, Any]:
    """A plain loop that updates after each step."""
    parameters = dict(module.named_parameters())
    config = OptimizerConfig(options.synchronous_lr, what.steps, what.steps // 20, clip=1.0, weight_decay=0.1)
    optimizer = config.build(parameters)
    for step in range(what.steps):
        optimizer.zero_grad()
        for microbatch in range(what.microbatches):
            loss = what.model.loss(module(what.feed.inputs(step, microbatch)), what.feed.targets(step, microbatch))
            (loss / what.microbatches).backward()
        norm = float(nn.utils.get_total_norm([p.grad for p in parameters.values() if p.grad is not None]))
        update(optimizer, config.rate(step), clip_factor(config.clip, norm))
    return {"updates": what.steps}


def by_clusters(what: RavnestTraining, clusters: int, module: nn.Module) -> dict[str, Any]:
    """Clusters of three nodes on the virtual clock; afterwards the module has their average."""
    with TemporaryDirectory() as kept:
        saved, orders = Path(kept) / "saved", OrderDirectory(Path(kept) / "orders", "")
        saving = SaveSettings(DiskStore(saved, what.model.identity()), 1 << 30, "run")
        keeps = {"saving": saving, "order_directory": orders}
        nodes = [f"n{number}" for number in range(3 * clusters)]
        party = Party(what, nodes, clusters, 3, SECONDS, directory_s=DIRECTORY_S, keeps=keeps).run()
        values = dict(find_whole_model([saved]).values)
        added = [order.added for run in read_orders(orders.path) for order in run.orders.values()]
    module.load_state_dict(values)
    staleness = [each.progress.staleness for each in party.seen if each.progress.step >= what.steps // 2]
    seconds = party.seen[-1].time_s - party.seen[0].time_s
    every = what.every * what.microbatches
    lags = [updates - number * every for each in added for number, updates in each.items()]
    figures = {"staleness": staleness[0], "virtual_s": seconds, "lag": fmean(lags) if lags else None}
    return {"updates": what.steps * what.microbatches // clusters, **figures}


def found(options: Options, name: str, seed: int) -> dict[str, Any]:
    """What is kept of a training, or the training, which is kept then."""
    if options.keep is None:
        return trained(options, name, seed)
    file = options.keep / f"{name.replace(', ', '-').replace(' ', '-')}.{seed}.json"
    if file.exists() and (kept := json.loads(file.read_text()))["options"] == options.decisive():
        return dict(kept["trained"])
    result = trained(options, name, seed)
    file.write_text(json.dumps({"options": options.decisive(), "trained": result}))
    return result


def all_found(options: Options) -> dict[str, list[dict[str, Any]]]:
    """Every training, by its name and in the order of the seeds."""
    names = [name for name in ARMS if name not in SAME]
    keys = [*product(options.seeds, names)]
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        results = pool.map(found, [options] * len(keys), *zip(*[(name, seed) for seed, name in keys], strict=True))
        done = dict(zip(keys, results, strict=True))
    return {name: [done[seed, name] for seed in options.seeds] for name in names}


def rows_of(results: Mapping[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each way's mean loss, and what is promised of it."""
    means = {name: fmean(each["loss"] for each in results[SAME.get(name, name)]) for name in ARMS}
    rows = []
    for name, arm in ARMS.items():
        row: dict[str, Any] = {"arm": name, "loss": means[name], "updates": results[SAME.get(name, name)][0]["updates"]}
        if arm.beside:
            row |= {"beside": arm.beside, "ratio": means[name] / means[arm.beside]}
            row |= {"below": means[arm.beside] - means[name], "promised": [arm.most, arm.below]}
            row["kept"] = row["ratio"] <= arm.most if arm.most else row["below"] >= arm.below
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    lines = [f"{'':<30} {'updates':>7} {'loss':>6}"]
    for row in rows:
        line = f"{row['arm']:<30} {row['updates']:>7} {row['loss']:>6.3f}"
        if "beside" in row:
            most, below = row["promised"]
            promise = f"at most {most - 1:.1%} above promised" if most else f"at least {below} below promised"
            verdict = "" if row["kept"] else ": NOT kept"
            line += f"  {row['ratio'] - 1:+.1%}, {-row['below']:+.3f} nats beside {row['beside']} ({promise}{verdict})"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    """Read the flags, train, and compare."""
    options = tyro.cli(Options, prog="python -m benchmarks.ravnest_learning")
    results = all_found(options)
    rows = rows_of(results)
    raw = {**options.decisive(), "seeds": options.seeds, "rows": rows, "trained": results}
    tell(options, raw, lambda: table(rows))


if __name__ == "__main__":
    sys.exit(program(main))
