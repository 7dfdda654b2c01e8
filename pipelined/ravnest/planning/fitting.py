"""Whether any cut of a cluster fits, and how many layers are too many for it where none does: fast, for searches.

The more layers a node takes, the later the stages after it begin. So of each set of first nodes only the furthest layer
that it can reach counts. That is exact where a stage that begins later holds less, and all layers but the first and the
last are alike: else a small node may have to get a small layer in the middle.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage import StageSizes

MAX_NODES = 16
"""Nodes of a cluster up to which every set of them is looked at: 16 take some 10 ms, 10 less than 1."""
Indices = NDArray[np.int64]
NOWHERE = -1


class Fitting:
    """The furthest layers that clusters of the nodes of a pool can reach."""

    def __init__(self, nodes: Sequence[PoolNode], sizes: StageSizes):
        self._sizes, self._rams = sizes, np.array([float(node.ram) for node in nodes])
        self._ends_of: dict[tuple[int, int, int], Indices | None] = {}
        self._lacks: dict[tuple[float, ...], int | None] = {}
        self._are_alike = len({*sizes.layers[1:-1]}) < 2

    def lack(self, members: Sequence[int]) -> int | None:
        """Layers that no cut over these nodes can hold, 0 if one fits; None where this file cannot say.

        Where a node finds no place in any order, more than the model has. Of many nodes one order alone is tried.
        """
        key = tuple(sorted(self._rams[node] for node in members))
        if key not in self._lacks:
            found = self._lack(members)
            self._lacks[key] = found if found == 0 or self._are_alike else None
        return self._lacks[key]

    def order(self, members: Sequence[int]) -> list[int] | None:
        """An order of these nodes in which a cut fits; None where there is none, or this file cannot say."""
        if self.lack(members) != 0:
            return None
        if len(members) > MAX_NODES:
            return self._in_turn(members)[0]
        (furthest, ends), mask, order = self._furthest(members), 2 ** len(members) - 1, list[int]()
        for table in reversed(ends):
            held = [node for node in range(len(members)) if mask >> node & 1]
            last = next(node for node in held if table[node, furthest[mask ^ 1 << node]] == furthest[mask])
            order.insert(0, members[last])
            mask ^= 1 << last
        return order

    def _lack(self, members: Sequence[int]) -> int | None:
        layers, depth = len(self._sizes.layers), len(members)
        if depth > layers:
            return layers + depth
        if any(self._ends(stage, depth) is None for stage in range(depth)):
            return None
        if depth > MAX_NODES:
            order, reached = self._in_turn(members)
            return layers - reached if len(order) == depth else layers + depth - len(order)
        furthest, _ = self._furthest(members)
        if furthest[-1] != NOWHERE:
            return layers - int(furthest[-1])
        placed = max(mask.bit_count() for mask in map(int, np.flatnonzero(furthest != NOWHERE)))
        return layers + depth - placed

    def _in_turn(self, members: Sequence[int]) -> tuple[list[int], int]:
        """An order: the smallest node left that holds a layer, for as long as there is one; and the layer reached."""
        left, order, reached = sorted(members, key=lambda node: self._rams[node]), list[int](), 0
        for stage in range(len(members)):
            ends, most = self._ends(stage, len(members)), len(self._sizes.layers) - len(left) + 1
            able = [node for node in left if ends is not None and ends[node, reached] > reached]
            if not able or reached >= most:
                break
            reached = min(int(ends[able[0], reached]), most) if ends is not None else reached
            order.append(able[0])
            left.remove(able[0])
        return order, reached

    def _furthest(self, members: Sequence[int]) -> tuple[Indices, list[Indices]]:
        """By set of members, as a mask, the furthest layer that they reach as first stages; and every stage's ends."""
        layers, depth = len(self._sizes.layers), len(members)
        found, ends = np.full(2**depth, NOWHERE), list[Indices]()
        found[0] = 0
        for stage, (masks, nodes, rest) in enumerate(_transitions(depth)):
            known = self._ends(stage, depth)
            assert known is not None
            table = np.minimum(known[list(members)], layers - (depth - 1 - stage))  # a layer for each node that follows
            table[table <= np.arange(layers + 2)] = NOWHERE
            found[masks] = table[nodes, found[rest]].max(axis=1)
            ends.append(table)
        return found, ends

    def _ends(self, stage: int, depth: int) -> Indices | None:
        """By node and first layer, the end of the layers that fit into a stage; None where a later one may hold more.

        Shapes: (nodes, L + 2); the last column, where `NOWHERE` points, is the stage after a set that fits nowhere.
        """
        alive = self._sizes.rules.alive
        key = alive(stage, depth), alive(0, depth), alive(stage - 1, depth) if stage else 0
        if key not in self._ends_of:
            held = self._sizes.bytes(*key)
            first, end = np.triu_indices(len(held), k=2)
            ends = np.full((len(self._rams), len(held) + 1), NOWHERE)
            for row, need in enumerate(held[:-1]):
                ends[:, row] = row + np.searchsorted(need[row + 1 :], self._rams, side="right")
            self._ends_of[key] = ends if (held[first + 1, end] <= held[first, end]).all() else None
        return self._ends_of[key]


@cache
def _transitions(depth: int) -> list[tuple[Indices, Indices, Indices]]:
    """For each stage: the sets of nodes up to it, as masks; the nodes of each; and the sets without each of them."""
    masks = np.arange(2**depth)
    held = masks[:, None] >> np.arange(depth) & 1
    counts, found = held.sum(axis=1), []
    for count in range(1, depth + 1):
        sets = masks[counts == count]
        nodes = np.nonzero(held[sets])[1].reshape(len(sets), count)
        found.append((sets, nodes, sets[:, None] ^ 1 << nodes))
    return found
