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
        self._known_for = (0, np.inf)
        self._known = dict[tuple[int, int], CutCosts]()
        self._fitting = Fitting(nodes, sizes)

    def lack(self, members: Sequence[int]) -> int | None:
        """As `Fitting.lack`."""
        return self._fitting.lack(members)

    def worst(self, members: Sequence[int]) -> float:
        """The largest cost of a stage in the best cut: a share of RAM, or seconds. Infinity where none fits."""
        if len(members) > len(self._sizes.layers):
            return np.inf
        if len(members) > MAX_IN_TABLE:
            return self._worst_in_order(self._descended(members))
        return float(self._rest(self._table(len(members)), _mask(members), len(members), np.inf)[0])

    def best(self, members: Sequence[int]) -> list[CutStage] | None:
        """The best cut, first stage first; None where none fits."""
        limit = self.worst(members)
        if limit == np.inf:
            return None
        orders = self._descended(members) if len(members) > MAX_IN_TABLE else None
        rests: dict[int, CutCosts] = {}
        mask = _mask(members)
        depth = len(members)
        first = 0
        cut = list[CutStage]()
        reached = float(self._rest(rests, mask, depth, limit, orders)[0])
        for stage in range(depth):
            for node in [orders[stage]] if orders else members_of(mask):
                rest = self._rest(rests, mask ^ 1 << node, depth, limit, orders)
                row = np.maximum(self._costs(node, stage, depth, limit)[first], rest)
                if row.min() <= reached:
                    cut.append(CutStage(node, first, int(row.argmin())))
                    break
            mask, first = mask ^ 1 << cut[-1].node, cut[-1].end
        return cut

    def _table(self, depth: int) -> dict[int, CutCosts]:
        """What is known by the set of nodes, where the depth does not decide on the bytes, too."""
        by_depth = self._sizes.has_skips or self._sizes.rules.ahead is not None
        return self._tables.setdefault(depth if by_depth else 0, {})

    def _rest(
        self, table: dict[int, CutCosts], mask: int, depth: int, limit: float, order: Sequence[int] | None = None
    ) -> CutCosts:
        """By first layer, the least largest cost of the last stages of a cluster of `depth`, on the nodes of a mask."""
        if mask in table:
            return table[mask]
        if not mask:
            found = np.full(len(self._sizes.layers) + 1, np.inf)
            found[-1] = 0.0
        else:
            stage = depth - mask.bit_count()
            found = np.min(
                [
                    np.maximum(
                        self._costs(node, stage, depth, limit), self._rest(table, mask ^ 1 << node, depth, limit, order)
                    ).min(axis=1)
                    for node in ([order[stage]] if order else members_of(mask))
                ],
                axis=0,
            )
        table[mask] = found
        return found

    def _costs(self, node: int, stage: int, depth: int, limit: float) -> CutCosts:
        """The cost of every [first, end) on a node: the first one; given its limit, the second one within it."""
        if self._known_for != (depth, limit):
            self._known_for = (depth, limit)
            self._known = {}
        if (node, stage) not in self._known:
            held = self._nodes[node]
            alive = self._sizes.rules.alive
            waiting = alive(stage - 1, depth)
            share = self._sizes.bytes(alive(stage, depth), alive(0, depth), waiting) / held.ram
            seconds = self._sizes.work / held.flops if held.flops else np.zeros_like(share)
            first, second = (seconds, share) if self._objective == "rate" else (share, seconds)
            fits = (share <= 1) & (first <= limit)
            self._known[node, stage] = np.where(fits, first if limit == np.inf else second, np.inf)
        return self._known[node, stage]

    def _worst_in_order(self, order: Sequence[int]) -> float:
        return float(self._rest({}, _mask(order), len(order), np.inf, order)[0])

    def _descended(self, members: Sequence[int]) -> list[int]:
        """A good order of many nodes: largest first or last, or one that fits; then the best swap while one helps."""
        rising = sorted(members, key=lambda node: (self._nodes[node].ram, node))
        orders = [rising, rising[::-1], self._fitting.order(members) or rising]
        reached, order = min((self._worst_in_order(order), order) for order in orders)
        while True:
            swaps = (_swapped(order, i, j) for i, j in combinations(range(len(order)), 2))
            found, best = min((self._worst_in_order(swap), swap) for swap in swaps)
            if found >= reached:
                return order
            reached, order = found, best


def _mask(members: Sequence[int]) -> int:
    return sum(1 << node for node in members)


def members_of(mask: int) -> list[int]:
    """The numbers of the nodes in a set."""
    return [node for node in range(mask.bit_length()) if mask >> node & 1]


def _swapped(order: Sequence[int], i: int, j: int) -> list[int]:
    swap = list(order)
    swap[i], swap[j] = swap[j], swap[i]
    return swap
