"""Formation: known answers, and the genetic search beside the exhaustive one."""

import random
from itertools import product

import pytest

from pipelined.ravnest.planning.formation import Formation, form
from pipelined.ravnest.planning.pool import PoolNode

SIX = tuple(PoolNode(*row) for row in [("a", 8, 3), ("b", 12, 2), ("c", 4, 8), ("d", 8, 5), ("e", 12, 4), ("f", 8, 8)])


def any_cut(members):
    """Every cluster can be cut."""
    return 0.0


def random_pool(chance, most):
    """Nodes, the bytes of a model, and clusters that often have enough RAM."""
    nodes = tuple(
        PoolNode(str(i), chance.randint(4, 64), chance.randint(1, 20)) for i in range(chance.randint(4, most))
    )
    clusters = chance.randint(2, 4)
    return nodes, int(sum(node.ram for node in nodes) * chance.uniform(0.3, 0.95) / clusters), clusters


def scored(formation, partition):
    return partition and formation.score([formation.cost(members) for members in partition])


@pytest.mark.parametrize("method", ["exhaustive", "genetic"])
@pytest.mark.parametrize(
    ("clusters", "expected", "spread"), [(2, "ade bcf", 7 / 30), (3, "ad bc ef", 2.5), (4, None, None)]
)
def test_six_nodes(method, clusters, expected, spread):
    formation = Formation(SIX, 13, "transfer", any_cut)
    partition = form(formation, clusters, method)
    names = partition and " ".join("".join(SIX[node].name for node in members) for members in partition)
    assert names == expected
    if partition:
        assert scored(formation, partition)[0] == pytest.approx(spread)


def test_the_exhaustive_search_misses_no_partition():
    """Beside every assignment of clusters to nodes, tried one after another."""
    chance = random.Random(5)
    for objective in ["transfer", "rate"] * 4:
        nodes, need, clusters = random_pool(chance, 6)
        formation = Formation(nodes, need, objective, lambda members: 100.0 / sum(3 + m for m in members))
        scores = []
        for assigned in product(range(clusters), repeat=len(nodes)):
            groups = [[node for node, group in enumerate(assigned) if group == c] for c in range(clusters)]
            if all(groups) and float("inf") not in (costs := [formation.cost(group) for group in groups]):
                scores.append(formation.score(costs))
        best = scored(formation, formation.exhaustive(clusters))
        assert best == (pytest.approx(min(scores)) if scores else None)


def test_a_cluster_without_a_cut_is_not_formed():
    """Nodes 0 and 3 (a, d) together are refused, so the best three clusters are others."""
    formation = Formation(SIX, 13, "transfer", lambda members: float("inf") if tuple(members) == (0, 3) else 0.0)
    for method in ("exhaustive", "genetic"):
        partition = form(formation, 3, method)
        assert partition is not None and (0, 3) not in partition
    assert form(Formation(SIX, 13, "transfer", lambda members: float("inf")), 2, "exhaustive") is None


@pytest.mark.parametrize(
    ("pools", "most"),
    [
        (20, 9),
        pytest.param(200, 9, marks=pytest.mark.full),
        pytest.param(100, 11, marks=pytest.mark.full),
    ],
)
def test_the_genetic_search_is_as_good_as_the_exhaustive_one(pools, most):
    """99 % of pools with at most 9 nodes, and 95 % of larger ones; and it finds a partition wherever one is."""
    chance, worse = random.Random(most), 0
    for seed in range(pools):
        nodes, need, clusters = random_pool(chance, most)
        if most > 9:
            nodes = tuple(
                PoolNode(str(i), chance.randint(4, 64), chance.randint(1, 20)) for i in range(chance.randint(10, 11))
            )
            need = int(sum(node.ram for node in nodes) * chance.uniform(0.3, 0.95) / clusters)
        formation = Formation(nodes, need, "transfer", any_cut)
        exact, genetic = formation.exhaustive(clusters), formation.genetic(clusters, seed)
        assert (exact is None) == (genetic is None)
        worse += exact is not None and scored(formation, genetic)[0] > scored(formation, exact)[0] * (1 + 1e-9) + 1e-9
    assert worse <= pools * (0.01 if most == 9 else 0.05)


@pytest.mark.parametrize(("count", "clusters"), [(30, 4), pytest.param(100, 10, marks=pytest.mark.full)])
def test_many_nodes_form_clusters_with_enough_memory(count, clusters):
    """A hundred nodes take about 2 s, thirty 0.1 s."""
    chance = random.Random(2)
    nodes = tuple(PoolNode(str(i), 2 ** chance.randint(3, 6), chance.choice([10, 20, 40])) for i in range(count))
    need = int(sum(node.ram for node in nodes) * 0.8 / clusters)
    formation = Formation(nodes, need, "transfer", any_cut)
    partition = formation.genetic(clusters)
    assert partition is not None and sorted(node for members in partition for node in members) == [*range(count)]
    spread, longest = scored(formation, partition)
    assert spread < 0.02 * longest
