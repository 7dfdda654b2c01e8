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
        largest = max(costs)
        return (largest, spread) if self.objective == "rate" else (spread, largest)

    def exhaustive(self, clusters: int) -> Partition | None:
        """The best of all partitions into this many feasible clusters; None where there is none.

        Cost: a few microseconds for each partition with enough RAM; 11 nodes take about a second.
        """
        cost_by_mask: dict[int, float] = {}

        def cost(mask: int) -> float:
            if mask not in cost_by_mask:
                cost_by_mask[mask] = self.cost(members_of(mask))
            return cost_by_mask[mask]

        best_score = (float("inf"), float("inf"))
        best_masks = None
        for masks in self._partitions(clusters):
            costs = [cost(mask) for mask in masks]
            if float("inf") not in costs and (score := self.score(costs)) < best_score:
                best_score = score
                best_masks = tuple(masks)
        return None if best_masks is None else tuple(tuple(members_of(mask)) for mask in best_masks)

    def genetic(self, clusters: int, seed: int = 0) -> Partition | None:
        """A good partition into this many feasible clusters, by the genetic search; None where it finds none.

        By `rate` clusters are compared by the sum of their speeds, which bounds what their cuts can reach.
        """
        by_rate = self.objective == "rate"
        weights = [(node.flops or 0.0) if by_rate else node.transfer_s for node in self.nodes]
        rams = [node.ram for node in self.nodes]
        lack = cache(self.lack)
        assignments = evolve(rams, weights, clusters, self.need, by_rate=by_rate, seed=seed)[:MAX_CHECKED]
        start = min(assignments, key=lambda assigned: sum(map(lack, _groups(assigned, clusters))))
        search = ClusterSearch(np.array(rams, dtype=np.float64), np.array(weights), clusters, self.need, by_rate)
        repaired = PartitionRepair(search, clusters, lack, seed).repaired(np.array(start))
        return None if repaired is None else tuple(sorted(_groups(repaired.tolist(), clusters)))

    def lack(self, members: Sequence[int]) -> float:
        """What is too much for a cluster, 0 where it is feasible: layers, or else bytes of its RAM."""
        unplaced_layers = self.unplaced(members) if members else None
        if unplaced_layers is not None:
            return unplaced_layers
        missing_bytes = self.need - sum(self.nodes[node].ram for node in members)
        if missing_bytes > 0 or not members:
            return max(1, missing_bytes)
        return float(self.slowest(members) == float("inf"))

    def _partitions(self, clusters: int) -> Iterator[list[int]]:
        """Every partition into this many groups with enough RAM, each group as a mask; valid until the next."""
        rams = [node.ram for node in self.nodes]
        masks = [0] * clusters
        missing_bytes = [self.need] * clusters

        def place(node: int, groups: int, ram_left: int) -> Iterator[list[int]]:
            if node == len(rams):
                yield masks
                return
            if len(rams) - node < clusters - groups or sum(lack for lack in missing_bytes if lack > 0) > ram_left:
                return
            for group in range(min(groups + 1, clusters)):
                masks[group] |= 1 << node
                missing_bytes[group] -= rams[node]
                yield from place(node + 1, max(groups, group + 1), ram_left - rams[node])
                masks[group] ^= 1 << node
                missing_bytes[group] += rams[node]

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
    return [tuple(node for node, group in enumerate(assigned) if group == cluster) for cluster in range(clusters)]
