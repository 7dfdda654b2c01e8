"""What rounds, late clusters and new backups cost those that train: `python -m benchmarks.ravnest_overlap`.

Two clusters of three nodes train with rounds beside training and without any, over lines on which a round takes at most
half the time between rounds. Of a larger model, three more nodes come, and form a late cluster; or one, and becomes the
backup of a place. Real actors on the virtual clock: devices take given times, and links take turns on a node's line.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import torch
import tyro

from apps.common.lm.models.gpt2 import UntiedGPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from benchmarks.harness.results import Reported, tell
from benchmarks.ravnest.party import Party
from pipelined.planner.trial import RandomTokens
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.planning.pool import NewcomerRole
from pipelined.ravnest.records.places import StagePlace
from pipelined.ravnest.stage.orders import OrderDirectory, read_orders
from pipelined.training.job.numerics import Numerics
from pipelined.training.optimizer import OptimizerConfig

SECONDS = {"forward": 0.01, "backward": 0.02, "snapshot": 0.001, "average": 0.001}
NEVER = 1 << 30
MICROBATCHES, SEQUENCE, VOCABULARY = 4, 8, 16
RAM = 11400
"""So that three nodes hold the model at six microbatches alive, and copies for others, and two cannot; see `Party`."""
LATE_EVERY = 24


@dataclass(frozen=True)
class Options(Reported):
    """Measure what is lost."""

    width: int = 64
    """Of the four blocks of GPT-2; a node has two layers."""
    rate: float = 1.67e6
    """Bytes a second of a node's line, each way."""
    ahead: int = 6
    """Microbatches alive in a first stage."""
    steps: int = 48
    """Steps of four microbatches, of both clusters together, where rounds are measured."""
    late_steps: int = 300
    """Steps of all clusters together where nodes come late."""
    joined_s: float = 3.0
    """Seconds after which they come."""
    late_width: int = 128
    """As `width`, where nodes come late: a late cluster's bytes take about four seconds."""


def training(width: int, steps: int, every: int) -> RavnestTraining:
    """What is trained, with so many steps of a cluster between rounds."""
    return RavnestTraining(
        model=UntiedGPT2(ModelConfig(4, width, 1, VOCABULARY, SEQUENCE, dropout=0.0, tied=False)),
        feed=RandomTokens(VOCABULARY, (1, SEQUENCE)),
        steps=steps,
        every=every,
        microbatch_size=1,
        microbatches=MICROBATCHES,
        optimizer_settings=OptimizerConfig(lr=1e-3, steps=steps, clip=0),
        numerics=Numerics(),
        sequence=SEQUENCE,
        seed=0,
        overlapped=True,
    )


def party(options: Options, what: RavnestTraining, **others: Any) -> Party:
    """The six nodes."""
    nodes = [f"n{number}" for number in range(6)]
    return Party(what, nodes, None, options.ahead, SECONDS, rate=options.rate, ram=RAM, **others)


def step_s(seen: Party, cluster: int = 0, until: float = float("inf")) -> float:
    """Seconds of a step of a cluster after its first one."""
    times = [each.time_s for each in seen.seen if each.cluster == cluster and each.time_s < until]
    return (times[-1] - times[0]) / (len(times) - 1)


def rounds(options: Options) -> dict[str, Any]:
    """The throughput with rounds over that without, by cluster, and how many updates a round lasts."""
    without = party(options, training(options.width, options.steps, NEVER)).run()
    with TemporaryDirectory() as kept:
        orders = OrderDirectory(Path(kept), "")
        beside = party(options, training(options.width, options.steps, 4), keeps={"order_directory": orders}).run()
        found = [order.added for run in read_orders(Path(kept)) for order in run.orders.values()]
    between = 4 * MICROBATCHES
    lags = [updates - number * between for added in found for number, updates in added.items()]
    shares = [step_s(without, cluster) / step_s(beside, cluster) for cluster in range(2)]
    return {"shares": shares, "updates_of_a_round": fmean(lags), "updates_between": between}


def joined(options: Options, names: Sequence[str], newcomers: NewcomerRole) -> Party:
    """Clusters of a larger model, which more nodes join while they train."""
    comes = party(options, training(options.late_width, options.late_steps, LATE_EVERY), newcomers=newcomers)

    async def join() -> None:
        await asyncio.sleep(options.joined_s)
        for name in names:
            comes.join(name)

    return comes.run(join())


def parameter_bytes(seen: Party, place: StagePlace) -> int:
    """Bytes of the parameters of a stage."""
    stage = seen.training.model.build(range(place.first, place.end), torch.float32, "meta", None)
    return 4 * sum(each.numel() for each in stage.parameters())


def late(options: Options) -> dict[str, Any]:
    """When a late cluster trains after it was formed, and what the others lose."""
    comes = joined(options, [f"late{number}" for number in range(3)], "cluster")
    formed, generation = comes.formed[max(comes.formed)]
    count, late = len(generation.clusters), generation.clusters[-1]
    most = max(parameter_bytes(comes, place) for place in late)
    bound = (3 * most + 2 * (count - 1) / count * most) / options.rate
    trains = min(comes.executors[place.holder.name].first["forward"] for place in late)
    lost = [lost_s(comes, cluster, formed, trains) for cluster in range(count - 1)]
    return {"clusters": count, "trains_after_s": trains - formed, "bound_s": bound, "lost_s": lost}


def backup(options: Options) -> dict[str, Any]:
    """When a new backup trains after its place was known, and what the clusters lose."""
    comes = joined(options, ["backup"], "backup")
    formed, generation = comes.formed[max(comes.formed)]
    (new,) = generation.backups
    bound = 3 * parameter_bytes(comes, generation.clusters[new.cluster][new.stage]) / options.rate
    trains = comes.executors["backup"].first["forward"]
    lost = [lost_s(comes, cluster, formed, trains) for cluster in range(len(generation.clusters))]
    return {"trains_after_s": trains - formed, "bound_s": bound, "lost_s": lost}


def lost_s(seen: Party, cluster: int, formed: float, trains: float) -> float:
    """Seconds that a cluster lost from when nodes that came were given places until they train."""
    times = [each.time_s for each in seen.seen if each.cluster == cluster]
    before = sum(time < formed for time in times) - 3  # the last two drain the pipeline
    after = sum(time < trains for time in times)
    return times[after] - times[before] - (after - before) * step_s(seen, cluster, formed - 0.1)


def table(found: dict[str, Any]) -> str:
    """The figures as text."""
    rounds, late, backup = found["rounds"], found["late"], found["backup"]
    return (
        f"a round lasts {rounds['updates_of_a_round']:.1f} of {rounds['updates_between']} updates; throughput of that "
        f"without rounds: {min(rounds['shares']):.1%}\n"
        f"a late cluster trains {late['trains_after_s']:.2f} s after it was formed; its bytes and a round take "
        f"{late['bound_s']:.2f} s; {lost(late)}\n"
        f"a new backup trains {backup['trains_after_s']:.2f} s after its place was known; its bytes take "
        f"{backup['bound_s']:.2f} s; {lost(backup)}"
    )


def lost(found: dict[str, Any]) -> str:
    """What the clusters that trained lost."""
    each = ", ".join(f"{seconds:.2f}" for seconds in found["lost_s"])
    return f"the others lose {each} s, at most {max(found['lost_s']) / found['trains_after_s']:.1%} of it"


def main() -> None:
    """Run it as the flags say."""
    options = tyro.cli(Options, prog="python -m benchmarks.ravnest_overlap")
    torch.set_num_threads(1)
    found = {"rounds": rounds(options), "late": late(options), "backup": backup(options)}
    tell(options, found, lambda: table(found))


if __name__ == "__main__":
    main()
