"""The repair of partitions: what the genetic search finds is changed until every cluster has a cut that fits.

The genetic search knows bytes alone. A cluster's cut needs more of them than the model has; how many more depends on
its nodes' number and sizes. So where memory is scarce, the best partitions by bytes may all have no cut.
"""

from collections.abc import Callable, Iterable

import numpy as np

from pipelined.ravnest.planning.genetic import Chromosomes, ClusterSearch, Floats, NodeMoves

MAX_TRIES = 4000
"""Moves and swaps of which the cuts are looked at, with what is found once looked up."""
PERTURBED = 3
"""Random moves from a partition where no move helps."""
Lack = Callable[[tuple[int, ...]], float]
"""What is too much for a cluster of these nodes; 0 where a cut fits."""


class PartitionRepair:
    """One repair.

    Args:
        lack: looked up once for each cluster tried.
        seed: of the order in which moves are tried.
    """

    def __init__(self, search: ClusterSearch, clusters: int, lack: Lack, seed: int = 0):
        self._search, self._clusters, self._lack = search, clusters, lack
        self._random = np.random.default_rng(seed)
        self._tries_left = MAX_TRIES

    def repaired(self, assigned: Chromosomes) -> Chromosomes | None:
        """The partition changed until every cluster fits, and then to the best near it; None where none was found."""
        lacks = self._lacks(assigned)
        while lacks.any():
            changed = self._move(assigned, lacks, self._touching(self._search.moves(assigned), lacks))
            if changed is None and (self._tries_left <= 0 or self._clusters == 1):
                return None
            assigned = self._perturbed(assigned) if changed is None else changed
            lacks = self._lacks(assigned)
        while (changed := self._move(assigned, lacks, self._better(assigned))) is not None:
            assigned = changed
        return assigned

    def _move(self, assigned: Chromosomes, lacks: Floats, order: tuple[NodeMoves, Iterable[int]]) -> Chromosomes | None:
        """The first move after which its two clusters lack less, or still nothing; None: none of those tried."""
        moves, candidates = order
        for move in candidates:
            if self._tries_left <= 0:
                return None
            self._tries_left -= 1
            pair = (int(moves.sources[move]), int(moves.targets[move]))
            changed = moves.moved(move, assigned)
            lack_before = lacks[pair[0]] + lacks[pair[1]]
            lack_after = sum(self._lack_of(changed, cluster) for cluster in pair)
            if lack_after < lack_before or lack_after == lack_before == 0:
                return changed
        return None

    def _touching(self, moves: NodeMoves, lacks: Floats) -> tuple[NodeMoves, Iterable[int]]:
        """The moves that change a cluster without a cut, at random."""
        useful = np.flatnonzero((lacks[moves.sources] > 0) | (lacks[moves.targets] > 0))
        return moves, map(int, self._random.permutation(useful))

    def _better(self, assigned: Chromosomes) -> tuple[NodeMoves, Iterable[int]]:
        """The moves to a better score, the best first."""
        moves = self._search.moves(assigned)
        reached = self._search.scores(assigned[None])[0]
        order = np.lexsort(moves.scores.T[::-1])
        return moves, (int(move) for move in order if self._search.is_better(moves.scores[move], reached))

    def _perturbed(self, assigned: Chromosomes) -> Chromosomes:
        for _ in range(PERTURBED):
            moves = self._search.moves(assigned)
            assigned = moves.moved(int(self._random.integers(len(moves.nodes))), assigned)
        return assigned

    def _lacks(self, assigned: Chromosomes) -> Floats:
        return np.array([self._lack_of(assigned, cluster) for cluster in range(self._clusters)], dtype=np.float64)

    def _lack_of(self, assigned: Chromosomes, cluster: int) -> float:
        return self._lack(tuple(map(int, np.flatnonzero(assigned == cluster))))
