"""Cluster formation: nodes into clusters that each hold the whole model and are as equal, or as fast, as can be.

By `transfer` the clusters' transfer times, sums of RAM over bandwidth, are as near one another as can be; then the
largest is as small as can be. By `rate` the slowest cluster is as fast as can be; then they are as equal as can be.

Source: Ravnest, section 3.5.2, equation 16. A cluster is feasible only if a cut fits; RAM that adds up is not enough.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

from pipelined.errors import UsageError
from pipelined.ravnest.planning.cuts import Objective, members_of
from pipelined.ravnest.planning.genetic import ClusterSearch, evolve
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.repair import PartitionRepair

Method = Literal["exhaustive", "genetic"]
MAX_EXHAUSTIVE = 11
"""Nodes up to which every partition is looked at: 11 nodes have 246,730 into 5 clusters."""
MAX_FORCED = 12
"""Nodes up to which it is done where it is asked for: 12 have 4.2 million partitions, a minute; 13 have 28 million."""
MAX_CHECKED = 100
"""Partitions of the genetic search of which the cuts are looked at, best first; that which lacks least is repaired."""
Partition = tuple[tuple[int, ...], ...]
FormationScore = tuple[float, float]
Cost = Callable[[Sequence[int]], float]


@dataclass(frozen=True)
class Formation:
    """What is to be formed.

    Args:
        nodes: the pool.
        need: bytes that the RAM of every cluster adds up to at least.
        objective: what is compared.
        slowest: seconds of the slowest node in a cluster's best cut, infinity where none fits; by `transfer` only the
            infinity counts.
        unplaced: layers that no cut of a cluster can hold, if that is known sooner: 0 where `slowest` is finite.
    """

    nodes: tuple[PoolNode, ...]
    need: int
    objective: Objective
    slowest: Cost
    unplaced: Callable[[Sequence[int]], int | None] = lambda members: None

    def cost(self, members: Sequence[int]) -> float:
        """Seconds that compare a cluster: its transfers, or its slowest node; infinite if it is not feasible."""
        if sum(self.nodes[node].ram for node in members) < self.need:
            return float("inf")
        slowest = self.slowest(members)
        if self.objective == "rate" or slowest == float("inf"):
            return slowest
        return sum(self.nodes[node].transfer_s for node in members)

    def score(self, costs: Sequence[float]) -> FormationScore:
        """The key to minimise, compared lexicographically."""
        spread = max(costs) - min(costs)
        worst = max(costs)
        return (worst, spread) if self.objective == "rate" else (spread, worst)

    def exhaustive(self, clusters: int) -> Partition | None:
        """The best of all partitions into this many feasible clusters; None where there is none.

        Cost: a few microseconds for each partition with enough RAM; 11 nodes take about a second.
        """
        known: dict[int, float] = {}

        def cost(mask: int) -> float:
            if mask not in known:
                known[mask] = self.cost(members_of(mask))
            return known[mask]

        best = (float("inf"), float("inf"))
        found = None
        for masks in self._partitions(clusters):
            costs = [cost(mask) for mask in masks]
            if float("inf") not in costs and (score := self.score(costs)) < best:
                best = score
                found = tuple(masks)
        return None if found is None else tuple(tuple(members_of(mask)) for mask in found)

    def genetic(self, clusters: int, seed: int = 0) -> Partition | None:
        """A good partition into this many feasible clusters, by the genetic search; None where it finds none.

        By `rate` clusters are compared by the sum of their speeds, which bounds what their cuts can reach.
        """
        by_rate = self.objective == "rate"
        weights = [(node.flops or 0.0) if by_rate else node.transfer_s for node in self.nodes]
        rams = [node.ram for node in self.nodes]
        lack = cache(self.lack)
        found = evolve(rams, weights, clusters, self.need, by_rate=by_rate, seed=seed)[:MAX_CHECKED]
        start = min(found, key=lambda assigned: sum(map(lack, _groups(assigned, clusters))))
        search = ClusterSearch(np.array(rams, dtype=np.float64), np.array(weights), clusters, self.need, by_rate)
        repaired = PartitionRepair(search, clusters, lack, seed).repaired(np.array(start))
        return None if repaired is None else tuple(sorted(_groups(repaired.tolist(), clusters)))

    def lack(self, members: Sequence[int]) -> float:
        """What is too much for a cluster, 0 where it is feasible: layers, or else bytes of its RAM."""
        known = self.unplaced(members) if members else None
        if known is not None:
            return known
        missing = self.need - sum(self.nodes[node].ram for node in members)
        if missing > 0 or not members:
            return max(1, missing)
        return float(self.slowest(members) == float("inf"))

    def _partitions(self, clusters: int) -> Iterator[list[int]]:
        """Every partition into this many groups with enough RAM, each group as a mask; valid until the next."""
        rams = [node.ram for node in self.nodes]
        masks = [0] * clusters
        missing = [self.need] * clusters

        def place(node: int, used: int, left: int) -> Iterator[list[int]]:
            if node == len(rams):
                yield masks
                return
            if len(rams) - node < clusters - used or sum(lack for lack in missing if lack > 0) > left:
                return
            for group in range(min(used + 1, clusters)):
                masks[group] |= 1 << node
                missing[group] -= rams[node]
                yield from place(node + 1, max(used, group + 1), left - rams[node])
                masks[group] ^= 1 << node
                missing[group] += rams[node]

        if clusters <= len(rams):
            yield from place(0, 0, sum(rams))


def method_for(nodes: int, method: Method | None) -> Method:
    """The method asked for; open: exhaustive for few nodes. Raises UsageError: exhaustive for too many."""
    if method == "exhaustive" and nodes > MAX_FORCED:
        fact = f"the exhaustive search compares every partition, which takes hours or more (nodes: {nodes}, at most "
        raise UsageError(f"{fact}{MAX_FORCED}); take --method genetic, or leave --method out")
    return method or ("exhaustive" if nodes <= MAX_EXHAUSTIVE else "genetic")


def form(formation: Formation, clusters: int, method: Method) -> Partition | None:
    """Form this many clusters; None where no partition has feasible clusters alone (`genetic`: none was found)."""
    return formation.exhaustive(clusters) if method == "exhaustive" else formation.genetic(clusters)


def _groups(assigned: Sequence[int], clusters: int) -> list[tuple[int, ...]]:
    return [tuple(node for node, of in enumerate(assigned) if of == cluster) for cluster in range(clusters)]
