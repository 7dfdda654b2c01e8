"""Whether any cut of a cluster fits, and how many layers are too many for it where none does: fast, for searches.

The more layers a node takes, the later the stages after it begin. So of each set of first nodes only the furthest layer
that it can reach counts. That is exact where a stage that begins later holds less, and all layers but the first and the
last are alike: else a small node may have to get a small layer in the middle.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage_sizes import StageSizes

MAX_SETS = 2**16
"""Sets of a cluster's nodes up to which each is looked at; nodes with as much memory are alike in them.

16 nodes of 16 memories, or 28 of 4, take some 20 ms, 10 nodes less than 1."""
Indices = NDArray[np.int64]
NOWHERE = -1


class Reach(NamedTuple):
    """How many of some nodes hold a layer in the best cut over them, and how many first layers they hold."""

    nodes: int
    layers: int


class Fitting:
    """The furthest layers that clusters of the nodes of a pool can reach."""

    def __init__(self, nodes: Sequence[PoolNode], sizes: StageSizes):
        self._sizes = sizes
        self._rams = np.array([float(node.ram) for node in nodes])
        self._ends_by_alive: dict[tuple[int, int, int], Indices | None] = {}
        self._lacks: dict[tuple[float, ...], int | None] = {}
        self._are_alike = len({*sizes.layers[1:-1]}) < 2

    def lack(self, members: Sequence[int]) -> int | None:
        """Layers that no cut over these nodes can hold, 0 if one fits; None where this file cannot say.

        Where a node finds no place in any order, more than the model has. With too many sets, one order alone is tried.
        """
        key = tuple(sorted(self._rams[node] for node in members))
        if key not in self._lacks:
            reach = self._reach(members)
            lack = reach and len(self._sizes.layers) - reach.layers
            if reach and reach.nodes < len(members):
                lack = len(self._sizes.layers) + len(members) - reach.nodes
            self._lacks[key] = lack if lack == 0 or self._are_alike else None
        return self._lacks[key]

    def order(self, members: Sequence[int]) -> list[int] | None:
        """An order of these nodes in which a cut fits; None where there is none, or this file cannot say."""
        if self.lack(members) != 0:
            return None
        kinds = self._kinds(members)
        if _sets(kinds) > MAX_SETS:
            return self._greedy_order(members)[0]
        furthest, ends = self._furthest(kinds)
        order = list[int]()
        steps = _steps(tuple(map(len, kinds)))
        position = _sets(kinds) - 1  # of the set of all nodes
        for table in reversed(ends):
            remaining_kinds = [kind for kind, nodes in enumerate(kinds) if nodes]
            reached = furthest[position]
            last_kind = next(
                kind for kind in remaining_kinds if table[kind, furthest[position - steps[kind]]] == reached
            )
            order.insert(0, kinds[last_kind].pop())
            position -= steps[last_kind]
        return order

    def _reach(self, members: Sequence[int]) -> Reach | None:
        """How far a cut over these nodes gets; None where this file cannot say."""
        depth = len(members)
        if depth > len(self._sizes.layers):
            return Reach(0, 0)
        if any(self._stage_ends(stage, depth) is None for stage in range(depth)):
            return None
        kinds = self._kinds(members)
        if _sets(kinds) > MAX_SETS:
            order, reached = self._greedy_order(members)
            return Reach(len(order), reached)
        furthest, _ = self._furthest(kinds)
        by_set = furthest[:-1]
        reached_by_all = int(by_set[-1])
        if reached_by_all != NOWHERE:
            return Reach(depth, reached_by_all)
        placed = _sizes(tuple(map(len, kinds)))[np.flatnonzero(by_set != NOWHERE)].sum(axis=1)
        return Reach(int(placed.max()), int(by_set.max()))

    def _kinds(self, members: Sequence[int]) -> list[list[int]]:
        """The members that have as much memory, for each memory: most first, so that few transitions differ."""
        kinds = dict[float, list[int]]()
        for node in members:
            kinds.setdefault(float(self._rams[node]), []).append(node)
        return sorted(kinds.values(), key=len, reverse=True)

    def _greedy_order(self, members: Sequence[int]) -> tuple[list[int], int]:
        """An order: the smallest node left that holds a layer, for as long as there is one; and the layer reached."""
        remaining = sorted(members, key=lambda node: self._rams[node])
        order = list[int]()
        reached = 0
        for stage in range(len(members)):
            ends = self._stage_ends(stage, len(members))
            limit = len(self._sizes.layers) - len(remaining) + 1
            able = [node for node in remaining if ends is not None and ends[node, reached] > reached]
            if not able or reached >= limit:
                break
            reached = min(int(ends[able[0], reached]), limit) if ends is not None else reached
            order.append(able[0])
            remaining.remove(able[0])
        return order, reached

    def _furthest(self, kinds: Sequence[Sequence[int]]) -> tuple[Indices, list[Indices]]:
        """The furthest layer that each set of nodes reaches as first stages, `NOWHERE` last; and every stage's ends.

        The ends are by kind of node and first layer.
        """
        layers = len(self._sizes.layers)
        counts = tuple(map(len, kinds))
        depth = sum(counts)
        firsts = [nodes[0] for nodes in kinds]
        furthest = np.full(_sets(kinds) + 1, NOWHERE)
        ends = list[Indices]()
        furthest[0] = 0
        for stage, (sets, kind, remaining_sets, starts) in enumerate(_transitions(counts)):
            stage_ends = self._stage_ends(stage, depth)
            assert stage_ends is not None
            table = np.minimum(stage_ends[firsts], layers - (depth - 1 - stage))  # a layer for each node that follows
            table[table <= np.arange(layers + 2)] = NOWHERE
            furthest[sets] = np.maximum.reduceat(table[kind, furthest[remaining_sets]], starts)
            ends.append(table)
        return furthest, ends

    def _stage_ends(self, stage: int, depth: int) -> Indices | None:
        """The end of the layers that fit into a stage, by node and first layer; None where a later one may hold more.

        Shapes: (nodes, L + 2); the last column, where `NOWHERE` points, is the stage after a set that fits nowhere.
        """
        alive = self._sizes.rules.alive
        key = alive(stage, depth), alive(0, depth), alive(stage - 1, depth) if stage else 0
        if key not in self._ends_by_alive:
            needs = self._sizes.bytes(*key)
            first, end = np.triu_indices(len(needs), k=2)
            ends = np.full((len(self._rams), len(needs) + 1), NOWHERE)
            for row, need in enumerate(needs[:-1]):
                ends[:, row] = row + np.searchsorted(need[row + 1 :], self._rams, side="right")
            self._ends_by_alive[key] = ends if (needs[first + 1, end] <= needs[first, end]).all() else None
        return self._ends_by_alive[key]


def _sets(kinds: Sequence[Sequence[int]]) -> int:
    """How many sets of these nodes there are, where those of a kind are alike."""
    return prod(len(nodes) + 1 for nodes in kinds)


def _steps(counts: tuple[int, ...]) -> list[int]:
    """How far apart the places of two sets are that differ in one node, by its kind."""
    return [prod(count + 1 for count in counts[:kind]) for kind in range(len(counts))]


@lru_cache(32)
def _sizes(counts: tuple[int, ...]) -> Indices:
    """How many nodes each set has, by kind, in the order of the sets. Shape: (sets, kinds)."""
    sizes = np.indices([count + 1 for count in reversed(counts)]).reshape(len(counts), -1)
    return sizes[::-1].T.copy()


@lru_cache(32)
def _transitions(counts: tuple[int, ...]) -> list[tuple[Indices, Indices, Indices, Indices]]:
    """The transitions to each stage.

    Each is the places of the sets of nodes up to the stage; then, one by one, the kinds of nodes in each set, the place
    of the set without such a node, and where the kinds of each set start.
    """
    sizes = _sizes(counts)
    steps = np.array(_steps(counts))
    transitions = []
    for size in range(1, sum(counts) + 1):
        sets = np.flatnonzero(sizes.sum(axis=1) == size)
        row, kind = np.nonzero(sizes[sets])
        transitions.append((sets, kind, sets[row] - steps[kind], np.flatnonzero(np.diff(row, prepend=-1))))
    return transitions
