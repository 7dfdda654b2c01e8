"""How long a round between clusters takes: `python -m benchmarks.ravnest_rings`.

The rings of `pipelined.ravnest.averaging.rings` over a virtual network on the virtual clock, where all links of a node
share its line; so every figure is the same on any machine. The bound is the time of the busiest line, max(bytes/rate).
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import tyro

from benchmarks.harness.results import Reported, tell
from collectives import ProblemSize
from collectives.algorithms.all_reduce.ring import RingAllReduce
from pipelined.aio.clock import run_virtual
from pipelined.ravnest.averaging.rings import Rings
from pipelined.ravnest.planning.ring_layout import Share, rings_of
from transports.rpc.virtual.network import VirtualNetwork, address_of
from transports.rpc.world import Worlds

LINE, UNEVEN = 1e6, (0.5e6, 2e6)
"""Bytes a second of equal lines, and the range of uneven ones."""
NUMBER_BYTES = 8
Clusters = list[list[Share]]


@dataclass(frozen=True)
class Options(Reported):
    """Time rounds between clusters."""

    elements: int = 120_000
    """Numbers of the model, each of 8 bytes."""
    layouts: int = 20
    """Random layouts of 2 to 4 clusters of 1 to 4 nodes."""
    delay_ms: float = 1.0
    """Milliseconds of a message."""
    seed: int = 0
    """Of the layouts and of uneven lines."""


def cut(cuts: Sequence[Sequence[int]], elements: int) -> Clusters:
    """Clusters that cut the model at these elements; ranks count nodes cluster by cluster."""
    clusters, rank = [], 0
    for inner in cuts:
        spans = [*pairwise([0, *inner, elements])]
        clusters.append([Share(rank + place, low, high) for place, (low, high) in enumerate(spans)])
        rank += len(spans)
    return clusters


def bytes_sent(clusters: Clusters) -> list[int]:
    """Bytes that each rank sends in a round, by the ring's closed form."""
    ring, sent = RingAllReduce(), [0] * sum(map(len, clusters))
    for part in rings_of(clusters):
        problem = ProblemSize.on_one_node(len(part.ranks), (part.high - part.low) * NUMBER_BYTES, NUMBER_BYTES)
        for place, rank in enumerate(part.ranks):
            sent[rank] += sum(ring.bytes_to(problem, place).values())
    return sent


def seconds(clusters: Clusters, rates: Sequence[float], delay_s: float) -> float:
    """The virtual seconds of a round in which each rank's line has its rate."""

    async def everyone() -> float:
        network = VirtualNetwork(delay=delay_s)
        names = [f"n{rank}" for rank in range(len(rates))]
        for name, rate in zip(names, rates, strict=True):
            network.set_access_rate(name, rate)
        opened = [Worlds(network.endpoint(name), 1 << 30) for name in names]
        addresses = [address_of(name) for name in names]
        worlds = await asyncio.gather(*(each.open("round", addresses) for each in opened))
        shares = [share for cluster in clusters for share in cluster]
        rings = [Rings(world, clusters, 0) for world in worlds]
        begun = asyncio.get_running_loop().time()
        arrays = (np.zeros(share.high - share.low) for share in shares)
        await asyncio.gather(*(ring.all_reduce([array]) for ring, array in zip(rings, arrays, strict=True)))
        return asyncio.get_running_loop().time() - begun

    return run_virtual(everyone())


def beside_bound(clusters: Clusters, rates: Sequence[float], delay_s: float) -> float:
    """The time of a round over that of the busiest line."""
    bound = max(sent / rate for sent, rate in zip(bytes_sent(clusters), rates, strict=True))
    return seconds(clusters, rates, delay_s) / bound


def random_layout(chance: random.Random, elements: int) -> Clusters:
    """Clusters that each cut the model anywhere."""
    sizes = (chance.randint(1, 4) for _ in range(chance.randint(2, 4)))
    return cut([sorted(chance.sample(range(1, elements), size - 1)) for size in sizes], elements)


def found_by(options: Options) -> dict[str, Any]:
    """All figures."""
    chance, delay_s = random.Random(options.seed), options.delay_ms / 1e3
    equal, uneven = list[float](), list[float]()
    for _ in range(options.layouts):
        clusters = random_layout(chance, options.elements)
        ranks = sum(map(len, clusters))
        equal.append(beside_bound(clusters, [LINE] * ranks, delay_s))
        uneven.append(beside_bound(clusters, [chance.uniform(*UNEVEN) for _ in range(ranks)], delay_s))
    whole = seconds(cut([[]] * 3, options.elements), [LINE] * 3, delay_s)
    speedups = {}
    for nodes in (2, 4, 8):
        inner = [options.elements * place // nodes for place in range(1, nodes)]
        speedups[nodes] = whole / seconds(cut([inner] * 3, options.elements), [LINE] * 3 * nodes, delay_s)
    return {"equal": equal, "uneven": uneven, "speedups": speedups}


def table(found: dict[str, Any]) -> str:
    """The figures as text."""
    lines = ["lines    least  mean  most   (a round over the time of its busiest line)"]
    for name in ("equal", "uneven"):
        each = found[name]
        lines.append(f"{name:<7} {min(each):>6.2f} {sum(each) / len(each):>5.2f} {max(each):>5.2f}")
    for nodes, speedup in found["speedups"].items():
        lines.append(
            f"{nodes} equal nodes a cluster: {speedup:.2f} times as fast as one ring ({speedup / nodes:.2f} each)"
        )
    return "\n".join(lines)


def main() -> None:
    """Run it as the flags say."""
    options = tyro.cli(Options, prog="python -m benchmarks.ravnest_rings")
    found = found_by(options)
    tell(options, found, lambda: table(found))


if __name__ == "__main__":
    main()
