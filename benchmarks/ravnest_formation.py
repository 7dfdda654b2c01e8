"""How good the searches for Ravnest's clusters are: `python -m benchmarks.ravnest_formation`.

Random pools are grouped by the exhaustive search, by the genetic search of the paper, and by the same with a part of
each generation descended, all by transfer times. A search is as good as the exhaustive one if no byte is missing and
its spread is the same.

Source: Ravnest (2024), section 3.5.2.
"""

import random
import time
from dataclasses import dataclass
from typing import Any

import tyro

from benchmarks._results import Reported, tell
from pipelined.ravnest.planning.formation import Formation
from pipelined.ravnest.planning.genetic import DESCENDED, evolve
from pipelined.ravnest.planning.pool import PoolNode

SEARCHES = {"paper": 0, "descended": DESCENDED}
"""Chromosomes of each generation that are descended, by search."""


@dataclass(frozen=True)
class Options(Reported):
    """Compare the genetic searches with the exhaustive one."""

    pools: int = 200
    """Pools of 4 to 9 nodes, and half as many of 10 and 11."""
    nodes: int = 100
    """Nodes of the one large pool, in a tenth as many clusters, which is only timed."""


def pool_of(chance: random.Random, least: int, most: int) -> tuple[tuple[PoolNode, ...], int, int]:
    """Nodes, clusters, and the bytes of a model of which so many often fit."""
    count = chance.randint(least, most)
    nodes = tuple(PoolNode(str(i), chance.randint(4, 64), chance.randint(1, 20)) for i in range(count))
    clusters = chance.randint(2, 4)
    return nodes, clusters, int(sum(node.ram for node in nodes) * chance.uniform(0.3, 0.95) / clusters)


def spread(formation: Formation, clusters: int, descended: int, seed: int) -> float | None:
    """The spread of the best chromosome in seconds; None: bytes are missing, or a cluster is empty."""
    rams, times = zip(*((node.ram, node.transfer_s) for node in formation.nodes), strict=True)
    best = evolve(rams, times, clusters, formation.need, by_rate=False, seed=seed, descended=descended)[0]
    groups = [[node for node, of in enumerate(best) if of == cluster] for cluster in range(clusters)]
    costs = [formation.cost(group) for group in groups]
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


def time_large(nodes: int) -> dict[str, Any]:
    """Seconds, and the spread reached, of each search in one large pool."""
    chance = random.Random(2)
    pool = tuple(PoolNode(str(i), 2 ** chance.randint(3, 6), chance.choice([10, 20, 40])) for i in range(nodes))
    clusters = max(1, nodes // 10)
    formation = Formation(pool, int(sum(node.ram for node in pool) * 0.8 / clusters), "transfer", lambda members: 0.0)
    found: dict[str, Any] = {"nodes": nodes, "clusters": clusters}
    for name, descended in SEARCHES.items():
        begun = time.perf_counter()
        found[name] = {"spread_s": spread(formation, clusters, descended, 0), "seconds": time.perf_counter() - begun}
    return found


def table(found: dict[str, Any]) -> str:
    """The figures as text."""
    lines = ["nodes    pools   the paper's   with descent   (as good as the exhaustive search)"]
    for row in found["small"]:
        least, most = row["nodes"]
        lines.append(f"{least:>3}-{most:<3} {row['pools']:>6} {row['paper']:>13} {row['descended']:>14}")
    large = found["large"]
    for name in SEARCHES:
        reached = "bytes missing" if large[name]["spread_s"] is None else f"spread {large[name]['spread_s']:.3g} s"
        lines.append(
            f"{large['nodes']} nodes, {large['clusters']} clusters, {name}: {reached}, {large[name]['seconds']:.1f} s"
        )
    return "\n".join(lines)


def main() -> None:
    """Run it as the flags say."""
    options = tyro.cli(Options, prog="python -m benchmarks.ravnest_formation")
    small = [compare(options.pools, 4, 9, 9), compare(max(1, options.pools // 2), 10, 11, 11)]
    found = {"small": small, "large": time_large(options.nodes)}
    tell(options, found, lambda: table(found))


if __name__ == "__main__":
    main()
