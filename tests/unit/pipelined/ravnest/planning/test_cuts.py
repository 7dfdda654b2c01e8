"""Cuts: known answers, and brute force over every cut and order."""

import random
from dataclasses import replace
from itertools import combinations, pairwise, permutations

import pytest

from pipelined.ravnest.planning.cuts import Cuts
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage_sizes import (
    LayerSize,
    StageRules,
    StageSizes,
    line_seconds,
    littles_law,
)

LAYER = LayerSize(parameters=1, activation_bytes=4, input_bytes=4, work=3.0)


def nodes_of(rams, speeds):
    """Nodes with a RAM that counts weights of one number, 4 bytes."""
    return tuple(PoolNode(str(ram), 4 * ram, 1.0, speed) for ram, speed in zip(rams, speeds, strict=True))


def best(rams, speeds, objective, layers=8, **rules):
    """The best cut as [(RAM of the node, layers)], the first stage first."""
    nodes = nodes_of(rams, speeds)
    cuts = Cuts(nodes, StageSizes([LAYER] * layers, StageRules(**rules)), objective)
    cut = cuts.best_cut(range(len(nodes)))
    return cut and [(rams[stage.node], stage.end - stage.first) for stage in cut]


def test_by_rate_the_slowest_of_three_nodes_takes_nine():
    assert best([12, 20, 40], [1.0, 2.0, 1.0], "rate") in ([(12, 1), (40, 3), (20, 4)], [(40, 3), (12, 1), (20, 4)])
    cuts = Cuts(nodes_of([12, 20, 40], [1.0, 2.0, 1.0]), StageSizes([LAYER] * 8, StageRules()), "rate")
    assert cuts.largest_cost([0, 1, 2]) == 9


def test_by_transfer_the_largest_share_is_three_quarters_and_ties_go_to_the_fastest():
    assert best([12, 20, 40], [1.0, 2.0, 1.0], "transfer") == [(12, 1), (40, 4), (20, 3)]
    cuts = Cuts(nodes_of([12, 20, 40], [1.0, 2.0, 1.0]), StageSizes([LAYER] * 8, StageRules()), "transfer")
    assert cuts.largest_cost([0, 1, 2]) == 0.75


def test_ram_that_adds_up_is_not_enough_where_versions_are_kept():
    assert best([40], [1.0], "transfer") == [(40, 8)]
    assert best([24, 24], [1.0, 1.0], "transfer") is None
    assert best([24, 24], [1.0, 1.0], "transfer", weights="newest") == [(24, 4), (24, 4)]


def test_more_nodes_than_layers_have_no_cut():
    assert best([40, 40, 40], [1.0] * 3, "transfer", layers=2) is None


def test_the_law_of_microbatches_alive():
    assert littles_law([30.0] * 3, [30.0] * 2) == [7, 4, 1]
    assert littles_law([3.0] * 4, [0.0] * 3) == [4, 3, 2, 1]


def brute_force(nodes, layers, rules, objective):
    """The least (largest cost, largest other cost) over every cut and order; None where none fits."""
    costs = []
    for order in permutations(nodes):
        for inner in combinations(range(1, len(layers)), len(order) - 1):
            shares, seconds = [], []
            for stage, (node, span) in enumerate(zip(order, pairwise([0, *inner, len(layers)]), strict=True)):
                part, alive = layers[slice(*span)], rules.alive(stage, len(order))
                copies = (alive if rules.weights == "kept" else 1) + 3 + (2 if rules.rounds else 0)
                kept = sum(layer.activation_bytes for layer in part)
                if rules.weights == "kept":
                    kept *= alive
                else:
                    kept += alive * part[0].input_bytes
                straight = [b for layer in part for source, b in layer.reads if source < span[0]]
                kept += rules.alive(0, len(order)) * sum(straight)
                shares.append((4 * copies * sum(layer.parameters for layer in part) + kept) / node.ram)
                recompute_factor = 4 / 3 if rules.weights == "newest" else 1
                seconds.append(sum(layer.work for layer in part) * recompute_factor / node.flops)
            if max(shares) <= 1:
                pair = max(seconds), max(shares)
                costs.append(pair if objective == "rate" else pair[::-1])
    return min(costs, default=None)


def measured(nodes, layers, rules, objective, cut):
    """The same two costs of one cut."""
    sizes = StageSizes(layers, rules)
    alive = [rules.alive(stage, len(cut)) for stage in range(len(cut))]
    shares = [sizes.bytes(k, alive[0])[s.first, s.end] / nodes[s.node].ram for k, s in zip(alive, cut, strict=True)]
    seconds = [sizes.work[s.first, s.end] / nodes[s.node].flops for s in cut]
    assert [0, *(s.end for s in cut)] == [*(s.first for s in cut), len(layers)]
    assert sorted(s.node for s in cut) == [*range(len(nodes))]
    return (max(seconds), max(shares)) if objective == "rate" else (max(shares), max(seconds))


def with_skips(layers, chance):
    """Each layer may read outputs of earlier layers than the one before it."""
    return [
        replace(layer, reads=tuple((at, chance.randint(1, 9)) for at in range(index - 1) if chance.random() < 0.3))
        for index, layer in enumerate(layers)
    ]


@pytest.mark.parametrize("skips", [False, True])
def test_cuts_are_as_good_as_brute_force_on_200_small_cases(skips):
    chance, fitting = random.Random(0), 0
    for _ in range(200):
        count = chance.randint(1, 4)
        layers = [
            LayerSize(*(chance.randint(1, 9) for _ in range(3)), float(chance.randint(1, 9)))
            for _ in range(chance.randint(count, 7))
        ]
        layers = with_skips(layers, chance) if skips else layers
        rules = StageRules(chance.choice(["kept", "newest"]), chance.random() < 0.5, chance.choice([None, None, 2, 5]))
        room = 4 * 7 * sum(layer.parameters for layer in layers) // count
        nodes = [
            PoolNode(str(i), chance.randint(room // 2, 2 * room), 1.0, chance.choice([1.0, 2.0, 3.0]))
            for i in range(count)
        ]
        objective = chance.choice(["rate", "transfer"])
        cut = Cuts(nodes, StageSizes(layers, rules), objective).best_cut(range(count))
        expected = brute_force(nodes, layers, rules, objective)
        found = cut and measured(nodes, layers, rules, objective, cut)
        assert found == (expected and pytest.approx(expected, rel=1e-12))
        fitting += cut is not None
    assert 60 < fitting < 190


def test_a_skip_costs_memory_where_it_is_read_and_time_on_the_lines_of_both_its_ends():
    """Four layers, one a node; the last reads what the first gives, too: 5 bytes, on lines of 1, 2, 1 and 4 bytes."""
    layers = [LAYER, LAYER, LAYER, replace(LAYER, reads=((0, 5),))]
    cut, lines = [range(n, n + 1) for n in range(4)], [1.0, 2.0, 1.0, 4.0]
    assert line_seconds(layers, cut, lines) == [9.0, 4.0, 4.0]  # of node 0: its own 4 and the 5; before: 9, 9, 9
    assert line_seconds(layers, cut, [9.0, 2.0, 1.0, 0.5]) == [2.0, 4.0, 18.0]
    assert line_seconds(layers, [range(3), range(3, 4)], [1.0, 1.0]) == [9.0]
    assert line_seconds(layers, [range(4)], [1.0]) == []
    held, without = StageSizes(layers, StageRules()), StageSizes([LAYER] * 4, StageRules())
    more = {
        at: held.bytes(1, 4)[at] - without.bytes(1, 4)[at] for at in ((0, 1), (1, 2), (2, 3), (3, 4), (1, 4), (0, 4))
    }
    assert [*more.values()] == [0, 0, 0, 20, 20, 0], "as many wait as are alive in the first stage"
    assert held.least == without.least


def test_cuts_over_some_of_the_nodes_do_not_depend_on_what_was_cut_before():
    layers = [*[LAYER] * 5, replace(LAYER, reads=((0, 40),))]
    nodes, every = nodes_of([40, 50, 60, 70], [1.0] * 4), [(0, 1), (0, 1, 2), (1, 2, 3), (0, 1, 2, 3)]
    shared = Cuts(nodes, StageSizes(layers, StageRules()), "transfer")
    alone = [Cuts(nodes, StageSizes(layers, StageRules()), "transfer").largest_cost(members) for members in every]
    assert [shared.largest_cost(members) for members in every] == alone


def test_many_nodes_are_cut_by_descent(monkeypatch):
    """Beyond the table's size a good order is searched; here it is as good as the table's."""
    rams, speeds = [12, 20, 40, 16], [1.0, 2.0, 1.0, 2.0]
    exact = best(rams, speeds, "transfer")
    monkeypatch.setattr("pipelined.ravnest.planning.cuts.MAX_IN_TABLE", 3)
    descended = best(rams, speeds, "transfer")
    assert descended is not None and sum(count for _, count in descended) == sum(count for _, count in exact) == 8


def test_sixty_four_layers_over_eight_nodes_fit():
    """As large as a cluster gets in an exact search; about 0.1 s."""
    cut = best([300, 100, 200, 400, 150, 250, 120, 80], [1.0, 3.0, 2.0, 1.0, 2.0, 1.0, 3.0, 2.0], "rate", layers=64)
    assert cut is not None and sum(count for _, count in cut) == 64
