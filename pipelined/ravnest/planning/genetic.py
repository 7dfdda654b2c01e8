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
    population, best_score, stale = search.ranked(population), None, 0
    populations = [population]
    for _ in range(GENERATIONS):
        population = search.ranked(search.next_generation(population, random, descended))
        populations.append(population)
        score = search.scores(population[:1])[0]
        stale = 0 if best_score is None or search.is_better(score, best_score) else stale + 1
        best_score = score
        if stale == PATIENCE:
            break
    return [*dict.fromkeys(tuple(map(int, assignment)) for assignment in search.ranked(np.concatenate(populations)))]


class NodeMoves(NamedTuple):
    """Moves and swaps: from which cluster, to which, the node, the node that comes back or -1, and the scores."""

    sources: Chromosomes
    targets: Chromosomes
    nodes: Chromosomes
    partners: Chromosomes
    scores: Floats

    def moved(self, move: int, assigned: Chromosomes) -> Chromosomes:
        """The chromosome after one of them."""
        moved = assigned.copy()
        moved[self.nodes[move]] = self.targets[move]
        if self.partners[move] >= 0:
            moved[self.partners[move]] = self.sources[move]
        return moved


class ClusterSearch:
    """Chromosomes of one pool: their scores, and the moves and swaps from one to others.

    Args: as of `evolve`.
    """

    def __init__(self, rams: Floats, weights: Floats, clusters: int, need: int, by_rate: bool):
        self._rams, self._weights = rams, weights
        self._clusters, self._need, self._by_rate = clusters, need, by_rate
        swap_nodes, swap_partners = np.triu_indices(len(rams), k=1)
        move_nodes = np.repeat(np.arange(len(rams)), clusters)
        self._candidate_pairs = (
            np.concatenate([move_nodes, swap_nodes]),
            np.concatenate([np.full(len(move_nodes), -1), swap_partners]),
        )
        self._rams_back, self._weights_back = (np.append(values, 0.0) for values in (rams, weights))

    def scores(self, population: Chromosomes) -> Floats:
        """Shapes: population (P, nodes); scores (P, 3): bytes missing, the value to minimise, and what breaks ties."""
        membership = population[:, :, None] == np.arange(self._clusters)
        missing_bytes = np.maximum(0, self._need - self._rams @ membership).sum(axis=1)
        sums = self._weights @ membership
        return self._rows(missing_bytes, sums.min(axis=1), sums.max(axis=1))

    def ranked(self, population: Chromosomes) -> Chromosomes:
        """The chromosomes, the best first."""
        return population[np.lexsort(self.scores(population).T[::-1])]

    def is_better(self, score: Floats, other_score: Floats) -> bool:
        """Whether a score is less than another by more than rounding."""
        for value, other_value in zip(score, other_score, strict=True):
            if abs(value - other_value) > TOLERANCE * max(abs(value), abs(other_value)):
                return bool(value < other_value)
        return False

    def next_generation(self, ranked: Chromosomes, random: np.random.Generator, descended: int) -> Chromosomes:
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
            move = _index_of_least(moves.scores)
            if not self.is_better(moves.scores[move], reached):
                break
            assigned, reached = moves.moved(move, assigned), moves.scores[move]
        return assigned

    def moves(self, assigned: Chromosomes) -> "NodeMoves":
        """Every move and swap."""
        count = len(assigned)
        nodes, partners = self._candidate_pairs
        targets = np.concatenate([np.tile(np.arange(self._clusters), count), assigned[partners[partners >= 0]]])
        useful = np.flatnonzero(assigned[nodes] != targets)
        nodes, partners, targets = nodes[useful], partners[useful], targets[useful]
        sources = assigned[nodes]
        ram = self._rams[nodes] - self._rams_back[partners]
        weight = self._weights[nodes] - self._weights_back[partners]
        membership = assigned[:, None] == np.arange(self._clusters)
        rams, sums = self._rams @ membership, self._weights @ membership
        lack = np.maximum(0, self._need - rams)
        missing_bytes = lack.sum() - lack[sources] - lack[targets]
        missing_bytes += np.maximum(0, self._need - rams[sources] + ram) + np.maximum(
            0, self._need - rams[targets] - ram
        )
        low, high = self._sums_of_others(sums)
        pair_sums = sums[sources] - weight, sums[targets] + weight
        smallest = np.minimum(low[sources, targets], np.minimum(*pair_sums))
        largest = np.maximum(high[sources, targets], np.maximum(*pair_sums))
        return NodeMoves(sources, targets, nodes, partners, self._rows(missing_bytes, smallest, largest))

    def _sums_of_others(self, sums: Floats) -> tuple[Floats, Floats]:
        """The least and the largest sum of all clusters but two. Shapes: (C, C)."""
        names = np.arange(self._clusters)
        in_pair = (names[:, None, None] == names) | (names[None, :, None] == names)
        return np.where(in_pair, np.inf, sums).min(axis=2), np.where(in_pair, -np.inf, sums).max(axis=2)

    def _rows(self, missing_bytes: Floats, smallest: Floats, largest: Floats) -> Floats:
        objective, tie_break = (-smallest, largest - smallest) if self._by_rate else (largest - smallest, largest)
        return np.stack([missing_bytes, objective, tie_break], axis=-1)


def _index_of_least(scores: Floats) -> int:
    """The first of the least scores."""
    candidates = np.arange(len(scores))
    for column in range(scores.shape[1]):
        values = scores[candidates, column]
        candidates = candidates[values == values.min()]
    return int(candidates[0])
