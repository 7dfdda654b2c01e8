"""Whether a cut fits, held to the table of all cuts; and partitions that fit where the best ones by bytes do not."""

import random

import numpy as np
import pytest

from pipelined.ravnest.planning import fitting
from pipelined.ravnest.planning.cuts import Cuts
from pipelined.ravnest.planning.fitting import Fitting
from pipelined.ravnest.planning.formation import Formation
from pipelined.ravnest.planning.genetic import ClusterSearch
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.repair import PartitionRepair
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules, StageSizes

EIGHT = (LayerSize(parameters=1, activation_bytes=4, input_bytes=4, work=1.0),) * 8


def nodes_of(rams):
    return tuple(PoolNode(str(i), 4 * ram, 1.0) for i, ram in enumerate(rams))


@pytest.mark.parametrize(
    ("rams", "weights", "lack"),
    [
        ([24, 24], "kept", 1),  # 7 a layer in the first stage and 5 in the last: 3 and 4 layers
        ([24, 24], "newest", 0),
        ([40], "kept", 0),
        ([39], "kept", 1),
        ([4, 39], "kept", 9),  # 4 holds no layer anywhere: one node more than all layers
    ],
)
def test_the_layers_that_no_cut_holds_are_counted(rams, weights, lack):
    fitting = Fitting(nodes_of(rams), StageSizes(EIGHT, StageRules(weights)))
    assert fitting.lack(range(len(rams))) == lack


def random_layers(chance, alike):
    """Layers of random sizes; perhaps those in the middle, and the inputs, are alike."""
    count, inner = chance.randint(2, 9), (chance.randint(1, 4), chance.randint(0, 8))
    sizes = [(chance.randint(1, 4), chance.randint(0, 8)) for _ in range(count)]
    if alike:
        sizes[1:-1] = [inner] * (count - 2)
    return [LayerSize(*size, 4 if alike else chance.randint(1, 8), 1.0) for size in sizes]


def random_cluster(chance, alike):
    rules = StageRules(chance.choice(["kept", "newest"]), chance.random() < 0.5, chance.choice([None, 3]))
    rams = [chance.randint(20, 300) for _ in range(chance.choice([2, 5]))]
    nodes = tuple(PoolNode(str(i), chance.choice(rams), 1.0) for i in range(chance.randint(1, 5)))
    return nodes, StageSizes(random_layers(chance, alike), rules)


@pytest.mark.parametrize("alike", [True, False])
def test_it_says_what_the_table_of_all_cuts_says_and_finds_an_order_that_fits(alike):
    chance, fits, unknown = random.Random(1), 0, 0
    for _ in range(150):
        nodes, sizes = random_cluster(chance, alike)
        found, members = Fitting(nodes, sizes), range(len(nodes))
        cuts = Cuts(nodes, sizes, "transfer")
        lack, order = found.lack(members), found.order(members)
        unknown += lack is None
        if lack is not None:
            assert (lack == 0) == (cuts.largest_cost(members) < float("inf")) == (order is not None)
        if order is not None:
            fits += 1
            assert sorted(order) == [*members] and cuts._largest_cost_in_order(order) <= 1
    assert 40 < fits < 110 and (unknown == 0 if alike else unknown > 0)


def test_where_a_stage_that_begins_later_holds_more_it_cannot_say():
    """Tensors from the first layer to the last go straight to any stage after the first."""
    layers = [*EIGHT[:3], LayerSize(parameters=1, activation_bytes=4, input_bytes=4, work=1.0, reads=((0, 400),))]
    fitting = Fitting(nodes_of([200, 200]), StageSizes(layers, StageRules()))
    assert fitting.lack([0, 1]) is None and fitting.order([0, 1]) is None


def test_where_a_small_node_needs_a_small_layer_in_the_middle_it_cannot_say():
    """Only layer 1 fits on the last node, and a node that takes all that fits goes past it."""
    layers = [LayerSize(*size, 4, 1.0) for size in [(2, 8), (1, 4), (2, 7), (4, 4), (2, 7)]]
    nodes = tuple(PoolNode(str(i), ram, 1.0) for i, ram in enumerate([238, 227, 192, 54]))
    sizes = StageSizes(layers, StageRules(rounds=True))
    assert Cuts(nodes, sizes, "transfer").largest_cost(range(4)) <= 1
    assert Fitting(nodes, sizes).lack(range(4)) is None


def test_many_nodes_of_few_memories_are_looked_at_in_every_order():
    """18 nodes hold these 33 layers only where some of the larger ones come first: two layers are left over else."""
    ends = [LayerSize(*size, 4, 1.0) for size in [(8, 6), (2, 3)]]
    layers = [ends[0], *[LayerSize(4, 7, 4, 1.0)] * 31, ends[1]]
    sizes = StageSizes(layers, StageRules("kept", rounds=True, ahead=4))
    nodes = tuple(PoolNode(str(i), 274 if i < 10 else 343, 1.0) for i in range(18))
    found, smallest_first = Fitting(nodes, sizes), Fitting(nodes, sizes)._greedy_order(range(18))
    assert smallest_first[1] == 31
    order = found.order(range(18))
    assert sorted(order) == [*range(18)]
    assert Cuts(nodes, sizes, "transfer")._largest_cost_in_order(order) <= 1


def test_of_too_many_sets_of_nodes_one_order_is_tried(monkeypatch):
    monkeypatch.setattr(fitting, "MAX_SETS", 4)
    chance, missed = random.Random(2), 0
    for _ in range(200):
        nodes, sizes = random_cluster(chance, alike=True)
        cuts, found, members = Cuts(nodes, sizes, "transfer"), Fitting(nodes, sizes), range(len(nodes))
        fits = cuts.largest_cost(members) < float("inf")
        if (order := found.order(members)) is not None:
            assert fits and cuts._largest_cost_in_order(order) <= 1
        missed += fits and found.lack(members) != 0
    assert missed < 10


def test_a_partition_that_fits_is_found_wherever_there_is_one():
    """Memory for two to four times the bytes of the model, so that about half of the pools cannot be cut at all."""
    chance, none = random.Random(3), 0
    for seed in range(40):
        layers = [LayerSize(chance.randint(5, 9), chance.randint(0, 9), 4, 1.0) for _ in range(chance.randint(6, 10))]
        if seed % 2:
            layers[1:-1] = layers[1:2] * (len(layers) - 2)
        sizes = StageSizes(layers, StageRules(rounds=True))
        nodes = tuple(
            PoolNode(str(i), chance.randint(250, 1200), float(chance.randint(1, 20)))
            for i in range(chance.randint(4, 8))
        )
        cuts = Cuts(nodes, sizes, "transfer")
        formation = Formation(nodes, sizes.least, "transfer", cuts.largest_cost, cuts.lack)
        exact, genetic = formation.exhaustive(2), formation.genetic(2, seed)
        assert (exact is None) == (genetic is None)
        assert genetic is None or all(cuts.largest_cost(members) <= 1 for members in genetic)
        none += exact is None
    assert 5 < none < 35


def scarce_formation(count):
    """Nodes with memory for about four times the bytes of three models."""
    chance = random.Random(3)
    sizes = StageSizes([LayerSize(6000, 20_000, 2000, 1.0)] * 16, StageRules(rounds=True))
    nodes = tuple(PoolNode(str(i), 2 ** chance.randint(18, 21), chance.choice([1e6, 2e6, 4e6])) for i in range(count))
    cuts = Cuts(nodes, sizes, "transfer")
    return Formation(nodes, sizes.least, "transfer", cuts.largest_cost, cuts.lack)


def repaired(formation, clusters, start):
    rams, times = (np.array(each) for each in zip(*((n.ram, n.transfer_s) for n in formation.nodes), strict=True))
    search = ClusterSearch(rams.astype(float), times, clusters, formation.need, by_rate=False)
    owner = PartitionRepair(search, clusters, formation.lack).repaired(np.array(start))
    return owner if owner is None else [tuple(np.flatnonzero(owner == cluster).tolist()) for cluster in range(clusters)]


def test_nodes_sorted_by_their_memory_are_moved_until_every_cluster_fits_and_then_until_they_are_equal():
    formation = scarce_formation(30)
    start = np.argsort(np.argsort([node.ram for node in formation.nodes])) // 10
    assert formation.lack(tuple(np.flatnonzero(start == 0))) > 0
    partition = repaired(formation, 3, start)
    assert sorted(node for members in partition for node in members) == [*range(30)]
    costs = [formation.cost(members) for members in partition]
    assert max(costs) - min(costs) < 0.1 * max(costs) < float("inf")


def test_where_no_partition_fits_the_search_ends():
    formation = scarce_formation(6)
    assert repaired(formation, 6, range(6)) is None
    assert repaired(scarce_formation(1), 1, [0]) is None
