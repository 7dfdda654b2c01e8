"""The best cut of a model over the nodes of a cluster: which layers on which node, in which order of nodes.

One table answers for every cluster of a pool: by the set of nodes that follow and the first layer that they hold, the
best that those nodes can reach. A stage's microbatches alive depend only on how many nodes follow: its bytes are known.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipelined.ravnest.planning.fitting import Fitting
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage_sizes import StageSizes

MAX_IN_TABLE = 11
"""Nodes of a cluster beyond which orders are searched by descent: the table has a row for every set of nodes."""
Objective = Literal["transfer", "rate"]
CutCosts = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CutStage:
    """The layers [first, end) on one node, by its index in the pool."""

    node: int
    first: int
    end: int


class Cuts:
    """The best cuts over the nodes of a pool.

    By `rate` the slowest node is as fast as can be, then the largest share of RAM as small; by `transfer` the other
    way round. A node always has a layer.

    Cost: for n nodes and L layers n 2^n numpy operations on L² numbers: 64 layers over 8 nodes take 0.1 s.
    """

    def __init__(self, nodes: Sequence[PoolNode], sizes: StageSizes, objective: Objective):
        self._nodes, self._sizes, self._objective = nodes, sizes, objective
        self._tables: dict[int, dict[int, CutCosts]] = {}
        self._stage_costs_key = (0, np.inf)
        self._stage_costs = dict[tuple[int, int], CutCosts]()
        self._fitting = Fitting(nodes, sizes)

    def lack(self, members: Sequence[int]) -> int | None:
        """As `Fitting.lack`."""
        return self._fitting.lack(members)

    def largest_cost(self, members: Sequence[int]) -> float:
        """The largest cost of a stage in the best cut: a share of RAM, or seconds. Infinity where none fits."""
        if len(members) > len(self._sizes.layers):
            return np.inf
        if len(members) > MAX_IN_TABLE:
            return self._largest_cost_in_order(self._descended_order(members))
        return float(self._remaining_costs(self._table(len(members)), _mask(members), len(members), np.inf)[0])

    def best_cut(self, members: Sequence[int]) -> list[CutStage] | None:
        """The best cut, first stage first; None where none fits."""
        limit = self.largest_cost(members)
        if limit == np.inf:
            return None
        orders = self._descended_order(members) if len(members) > MAX_IN_TABLE else None
        table: dict[int, CutCosts] = {}
        mask = _mask(members)
        depth = len(members)
        first = 0
        cut = list[CutStage]()
        least_cost = float(self._remaining_costs(table, mask, depth, limit, orders)[0])
        for stage in range(depth):
            for node in [orders[stage]] if orders else members_of(mask):
                remaining = self._remaining_costs(table, mask ^ 1 << node, depth, limit, orders)
                row = np.maximum(self._costs(node, stage, depth, limit)[first], remaining)
                if row.min() <= least_cost:
                    cut.append(CutStage(node, first, int(row.argmin())))
                    break
            mask, first = mask ^ 1 << cut[-1].node, cut[-1].end
        return cut

    def _table(self, depth: int) -> dict[int, CutCosts]:
        """What is known by the set of nodes, where the depth does not decide on the bytes, too."""
        is_by_depth = self._sizes.has_skips or self._sizes.rules.ahead is not None
        return self._tables.setdefault(depth if is_by_depth else 0, {})

    def _remaining_costs(
        self, table: dict[int, CutCosts], mask: int, depth: int, limit: float, order: Sequence[int] | None = None
    ) -> CutCosts:
        """The least largest cost of the last stages of a cluster of `depth`, by first layer, on the nodes of a mask."""
        if mask in table:
            return table[mask]
        if not mask:
            costs = np.full(len(self._sizes.layers) + 1, np.inf)
            costs[-1] = 0.0
        else:
            stage = depth - mask.bit_count()
            costs = np.min(
                [
                    np.maximum(
                        self._costs(node, stage, depth, limit),
                        self._remaining_costs(table, mask ^ 1 << node, depth, limit, order),
                    ).min(axis=1)
                    for node in ([order[stage]] if order else members_of(mask))
                ],
                axis=0,
            )
        table[mask] = costs
        return costs

    def _costs(self, node: int, stage: int, depth: int, limit: float) -> CutCosts:
        """The cost of every [first, end) on a node: the primary one; given its limit, the secondary one within it."""
        if self._stage_costs_key != (depth, limit):
            self._stage_costs_key = (depth, limit)
            self._stage_costs = {}
        if (node, stage) not in self._stage_costs:
            pool_node = self._nodes[node]
            alive = self._sizes.rules.alive
            waiting = alive(stage - 1, depth)
            share = self._sizes.bytes(alive(stage, depth), alive(0, depth), waiting) / pool_node.ram
            seconds = self._sizes.work / pool_node.flops if pool_node.flops else np.zeros_like(share)
            primary, secondary = (seconds, share) if self._objective == "rate" else (share, seconds)
            fits = (share <= 1) & (primary <= limit)
            self._stage_costs[node, stage] = np.where(fits, primary if limit == np.inf else secondary, np.inf)
        return self._stage_costs[node, stage]

    def _largest_cost_in_order(self, order: Sequence[int]) -> float:
        return float(self._remaining_costs({}, _mask(order), len(order), np.inf, order)[0])

    def _descended_order(self, members: Sequence[int]) -> list[int]:
        """A good order of many nodes: largest first or last, or one that fits; then the best swap while one helps."""
        rising = sorted(members, key=lambda node: (self._nodes[node].ram, node))
        orders = [rising, rising[::-1], self._fitting.order(members) or rising]
        cost, order = min((self._largest_cost_in_order(order), order) for order in orders)
        while True:
            swaps = (_swapped(order, i, j) for i, j in combinations(range(len(order)), 2))
            swap_cost, best_swap = min((self._largest_cost_in_order(swap), swap) for swap in swaps)
            if swap_cost >= cost:
                return order
            cost, order = swap_cost, best_swap


def _mask(members: Sequence[int]) -> int:
    return sum(1 << node for node in members)


def members_of(mask: int) -> list[int]:
    """The numbers of the nodes in a set."""
    return [node for node in range(mask.bit_length()) if mask >> node & 1]


def _swapped(order: Sequence[int], i: int, j: int) -> list[int]:
    swap = list(order)
    swap[i], swap[j] = swap[j], swap[i]
    return swap
