"""The genetic search for clusters: random chromosomes, penalty, tournament, crossover, mutation, the best kept.

A chromosome gives each node its cluster. Bytes missing to the model are the penalty and come before anything else. A
part of each generation is descended: its best move of a node, or swap of two, is made for as long as one helps.

Source: Ravnest, section 3.5.2; the descent is ours (without it the search finds about half of the optima).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

POPULATION, GENERATIONS, PATIENCE = 40, 24, 8
"""Chromosomes; the most generations; generations without a better one after which the search ends."""
ELITE, TOURNAMENT, DESCENDED = 2, 3, 6
TOLERANCE = 1e-12
"""The part of a score by which another must be better to count as better: sums are not exact."""
Floats = NDArray[np.float64]
Chromosomes = NDArray[np.int64]


def evolve(
    rams: Sequence[int],
    weights: Sequence[float],
    clusters: int,
    need: int,
    *,
    by_rate: bool,
    seed: int = 0,
    descended: int = DESCENDED,
) -> list[tuple[int, ...]]:
    """Every chromosome that was looked at, the best first: the cluster of each node.

    Args:
        weights: of each node; sums of them compare clusters.
        by_rate: True: prefer a large least sum, then equal sums; False: prefer equal sums, then a small largest one.
        descended: chromosomes of each generation that are descended; 0: the paper's search.
    Cost: 100 nodes in 10 clusters about 3 s; 10 nodes some 30 ms.
    """
    search = ClusterSearch(np.array(rams, dtype=np.float64), np.array(weights), clusters, need, by_rate)
    random = np.random.default_rng(seed)
    population = random.integers(clusters, size=(POPULATION, len(rams)))
    search.descend(population[:descended])
    population, best, stale = search.ranked(population), None, 0
    seen = [population]
    for _ in range(GENERATIONS):
        population = search.ranked(search.next(population, random, descended))
        seen.append(population)
        reached = search.scores(population[:1])[0]
        stale = 0 if best is None or search.is_better(reached, best) else stale + 1
        best = reached
        if stale == PATIENCE:
            break
    return [*dict.fromkeys(tuple(map(int, assignment)) for assignment in search.ranked(np.concatenate(seen)))]


class NodeMoves(NamedTuple):
    """Moves and swaps: from which cluster, to which, the node, the node that comes back or -1, and the scores."""

    sources: Chromosomes
    targets: Chromosomes
    nodes: Chromosomes
    others: Chromosomes
    scores: Floats

    def after(self, move: int, assigned: Chromosomes) -> Chromosomes:
        """The chromosome after one of them."""
        after = assigned.copy()
        after[self.nodes[move]] = self.targets[move]
        if self.others[move] >= 0:
            after[self.others[move]] = self.sources[move]
        return after


class ClusterSearch:
    """Chromosomes of one pool: their scores, and the moves and swaps from one to others.

    Args: as of `evolve`.
    """

    def __init__(self, rams: Floats, weights: Floats, clusters: int, need: int, by_rate: bool):
        self._rams, self._weights = rams, weights
        self._clusters, self._need, self._by_rate = clusters, need, by_rate
        left, right = np.triu_indices(len(rams), k=1)
        alone = np.repeat(np.arange(len(rams)), clusters)
        self._moved = np.concatenate([alone, left]), np.concatenate([np.full(len(alone), -1), right])
        self._rams_back, self._weights_back = (np.append(values, 0.0) for values in (rams, weights))

    def scores(self, population: Chromosomes) -> Floats:
        """Shapes: population (P, nodes); scores (P, 3): bytes missing, the value to minimise, and what breaks ties."""
        mine = population[:, :, None] == np.arange(self._clusters)
        missing = np.maximum(0, self._need - self._rams @ mine).sum(axis=1)
        sums = self._weights @ mine
        return self._rows(missing, sums.min(axis=1), sums.max(axis=1))

    def ranked(self, population: Chromosomes) -> Chromosomes:
        """The chromosomes, the best first."""
        return population[np.lexsort(self.scores(population).T[::-1])]

    def is_better(self, score: Floats, other: Floats) -> bool:
        """Whether a score is less than another by more than rounding."""
        for mine, its in zip(score, other, strict=True):
            if abs(mine - its) > TOLERANCE * max(abs(mine), abs(its)):
                return bool(mine < its)
        return False

    def next(self, ranked: Chromosomes, random: np.random.Generator, descended: int) -> Chromosomes:
        """The next generation: the best, and children of winners of tournaments, mutated, some of them descended."""
        children = len(ranked) - ELITE
        nodes = ranked.shape[1]
        mothers, fathers = (random.integers(len(ranked), size=(children, TOURNAMENT)).min(axis=1) for _ in range(2))
        born = np.where(random.random((children, nodes)) < 0.5, ranked[mothers], ranked[fathers])
        mutated = random.random(born.shape) < 1 / nodes
        born = np.where(mutated, random.integers(self._clusters, size=born.shape), born)
        self.descend(born[:descended])
        return np.concatenate([ranked[:ELITE], born])

    def descend(self, population: Chromosomes) -> None:
        """Descend each of these chromosomes, in place."""
        for chromosome in population:
            chromosome[:] = self.descended(chromosome)

    def descended(self, chromosome: Chromosomes) -> Chromosomes:
        """Make the best move of a node to another cluster, or swap of two nodes, for as long as one helps."""
        assigned = chromosome.copy()
        reached = self.scores(assigned[None])[0]
        while self._clusters > 1:
            moves = self.moves(assigned)
            move = _least(moves.scores)
            if not self.is_better(moves.scores[move], reached):
                break
            assigned, reached = moves.after(move, assigned), moves.scores[move]
        return assigned

    def moves(self, assigned: Chromosomes) -> "NodeMoves":
        """Every move and swap."""
        count = len(assigned)
        nodes, others = self._moved
        targets = np.concatenate([np.tile(np.arange(self._clusters), count), assigned[others[others >= 0]]])
        useful = np.flatnonzero(assigned[nodes] != targets)
        nodes, others, targets = nodes[useful], others[useful], targets[useful]
        sources = assigned[nodes]
        ram = self._rams[nodes] - self._rams_back[others]
        weight = self._weights[nodes] - self._weights_back[others]
        mine = assigned[:, None] == np.arange(self._clusters)
        rams, sums = self._rams @ mine, self._weights @ mine
        lack = np.maximum(0, self._need - rams)
        missing = lack.sum() - lack[sources] - lack[targets]
        missing += np.maximum(0, self._need - rams[sources] + ram) + np.maximum(0, self._need - rams[targets] - ram)
        low, high = self._others(sums)
        ends = sums[sources] - weight, sums[targets] + weight
        least = np.minimum(low[sources, targets], np.minimum(*ends))
        most = np.maximum(high[sources, targets], np.maximum(*ends))
        return NodeMoves(sources, targets, nodes, others, self._rows(missing, least, most))

    def _others(self, sums: Floats) -> tuple[Floats, Floats]:
        """The least and the largest sum of all clusters but two. Shapes: (C, C)."""
        names = np.arange(self._clusters)
        of_pair = (names[:, None, None] == names) | (names[None, :, None] == names)
        return np.where(of_pair, np.inf, sums).min(axis=2), np.where(of_pair, -np.inf, sums).max(axis=2)

    def _rows(self, missing: Floats, least: Floats, most: Floats) -> Floats:
        first, second = (-least, most - least) if self._by_rate else (most - least, most)
        return np.stack([missing, first, second], axis=-1)


def _least(scores: Floats) -> int:
    """The first of the least scores."""
    found = np.arange(len(scores))
    for column in range(scores.shape[1]):
        values = scores[found, column]
        found = found[values == values.min()]
    return int(found[0])
