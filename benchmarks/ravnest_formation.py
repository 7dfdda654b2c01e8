"""How good the searches for Ravnest's clusters are: `python -m benchmarks.ravnest_formation`.

Random pools are grouped by the exhaustive search, by the genetic search of the paper, and by the same with a part of
each generation descended, all by transfer times. A search is as good as the exhaustive one if no byte is missing and
its spread is the same. One large pool is planned whole, with ample and with scarce memory: the model is cut in every
cluster, and a cluster counts only if each node's bytes are within its RAM.

Source: Ravnest (2024), section 3.5.2.
"""

import random
import time
from dataclasses import dataclass
from typing import Any

import tyro

from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.ravnest.plan import layer_sizes
from benchmarks.harness.results import Reported, tell
from pipelined.errors import UsageError
from pipelined.ravnest.planning.cuts import Cuts
from pipelined.ravnest.planning.formation import Formation
from pipelined.ravnest.planning.genetic import DESCENDED, evolve
from pipelined.ravnest.planning.plan import PoolRequest, make_plan
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules, StageSizes

SEARCHES = {"paper": 0, "descended": DESCENDED}
"""Chromosomes of each generation that are descended, by search."""
WIDTHS = (48, 96)
"""Of the models for the large pool: memory is ample, and scarce."""


@dataclass(frozen=True)
class Options(Reported):
    """Compare the genetic searches with the exhaustive one."""

    pools: int = 200
    """Pools of 4 to 9 nodes, and half as many of 10 and 11."""
    nodes: int = 100
    """Nodes of the one large pool, in a tenth as many clusters, which is timed, and its cuts are checked."""


def pool_of(chance: random.Random, least: int, most: int) -> tuple[tuple[PoolNode, ...], int, int]:
    """Nodes, clusters, and the bytes of a model of which so many often fit."""
    count = chance.randint(least, most)
    nodes = tuple(PoolNode(str(i), chance.randint(4, 64), chance.randint(1, 20)) for i in range(count))
    clusters = chance.randint(2, 4)
    return nodes, clusters, int(sum(node.ram for node in nodes) * chance.uniform(0.3, 0.95) / clusters)


def best_groups(formation: Formation, clusters: int, descended: int, seed: int) -> list[list[int]]:
    """The nodes of each cluster in the best chromosome."""
    rams, times = zip(*((node.ram, node.transfer_s) for node in formation.nodes), strict=True)
    best = evolve(rams, times, clusters, formation.need, by_rate=False, seed=seed, descended=descended)[0]
    return [[node for node, of in enumerate(best) if of == cluster] for cluster in range(clusters)]


def spread(formation: Formation, clusters: int, descended: int, seed: int) -> float | None:
    """The spread of the best chromosome in seconds; None: bytes are missing, or a cluster is empty."""
    costs = [formation.cost(group) for group in best_groups(formation, clusters, descended, seed)]
    return None if float("inf") in costs else max(costs) - min(costs)


def compare(pools: int, least: int, most: int, seed: int) -> dict[str, Any]:
    """How often each search is as good as the exhaustive one."""
    chance = random.Random(seed)
    found: dict[str, Any] = {"nodes": [least, most], "pools": 0, **dict.fromkeys(SEARCHES, 0)}
    while found["pools"] < pools:
        nodes, clusters, need = pool_of(chance, least, most)
        formation = Formation(nodes, need, "transfer", lambda members: 0.0)
        groups = formation.exhaustive(clusters)
        if groups is None:
            continue
        costs = [formation.cost(members) for members in groups]
        goal = (max(costs) - min(costs)) * (1 + 1e-9) + 1e-9
        found["pools"] += 1
        for name, descended in SEARCHES.items():
            reached = spread(formation, clusters, descended, found["pools"])
            found[name] += reached is not None and reached <= goal
    return found


def time_large(nodes: int, width: int) -> dict[str, Any]:
    """Seconds, spread, and clusters with a cut of each search in one large pool.

    Args:
        width: of the model of 16 blocks: the wider it is, the scarcer is the memory.
    """
    chance = random.Random(6)
    pool = tuple(PoolNode(str(i), 2 ** chance.randint(23, 26), chance.choice([1e7, 2e7, 4e7])) for i in range(nodes))
    clusters = max(1, nodes // 10)
    model = ModelConfig(vocab=256, d_model=width, heads=4, layers=16, positions=64, tied=False)
    layers = tuple(layer_sizes(model, 4, 64))
    sizes = StageSizes(layers, StageRules(rounds=clusters > 1))
    held = sum(node.ram for node in pool) / clusters / sizes.least
    return {
        "nodes": nodes,
        "clusters": clusters,
        "memory": held,
        "paper": _plain(pool, clusters, Cuts(pool, sizes, "transfer"), sizes.least),
        "descended": _planned(pool, clusters, layers),
    }


def _plain(pool: tuple[PoolNode, ...], clusters: int, cuts: Cuts, need: int) -> dict[str, Any]:
    """The best chromosome of the paper's search."""
    begun, formation = time.perf_counter(), Formation(pool, need, "transfer", lambda members: 0.0)
    groups = best_groups(formation, clusters, SEARCHES["paper"], seed=0)
    fitting = [len(group) > 0 and cuts.best_cut(group) is not None for group in groups]
    times = [sum(pool[node].transfer_s for node in group) for group in groups]
    return {"spread_s": max(times) - min(times), "cut": sum(fitting), "seconds": time.perf_counter() - begun}


def _planned(pool: tuple[PoolNode, ...], clusters: int, layers: tuple[LayerSize, ...]) -> dict[str, Any]:
    """The whole plan: found, and cut, or refused."""
    begun = time.perf_counter()
    try:
        plan = make_plan(PoolRequest(pool, layers, clusters=clusters, objective="transfer", method="genetic"))
    except UsageError:
        return {"spread_s": None, "cut": 0, "seconds": time.perf_counter() - begun}
    cut = [bool(each.stages) and all(s.bytes <= s.node.ram for s in each.stages) for each in plan.clusters]
    return {"spread_s": plan.spread_s, "cut": sum(cut), "seconds": time.perf_counter() - begun}


def table(found: dict[str, Any]) -> str:
    """The figures as text."""
    lines = ["nodes    pools   the paper's   with descent   (as good as the exhaustive search)"]
    for row in found["small"]:
        least, most = row["nodes"]
        lines.append(f"{least:>3}-{most:<3} {row['pools']:>6} {row['paper']:>13} {row['descended']:>14}")
    for large in found["large"]:
        where = f"{large['nodes']} nodes, {large['clusters']} clusters, RAM {large['memory']:.1f} x the model's bytes"
        for name in SEARCHES:
            one = large[name]
            reached = "none found" if one["spread_s"] is None else f"spread {one['spread_s']:.2g} s"
            lines.append(f"{where}, {name}: {reached}, {one['cut']} with a cut, {one['seconds']:.1f} s")
    return "\n".join(lines)


def main() -> None:
    """Run it as the flags say."""
    options = tyro.cli(Options, prog="python -m benchmarks.ravnest_formation")
    small = [compare(options.pools, 4, 9, 9), compare(max(1, options.pools // 2), 10, 11, 11)]
    found = {"small": small, "large": [time_large(options.nodes, width) for width in WIDTHS]}
    tell(options, found, lambda: table(found))


if __name__ == "__main__":
    main()
