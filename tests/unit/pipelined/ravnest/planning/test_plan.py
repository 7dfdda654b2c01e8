"""Plans: known answers for open clusters, rings and the bytes of a round, and what is refused."""

from itertools import pairwise

import pytest

from pipelined.errors import UsageError
from pipelined.ravnest.planning.plan import (
    PlannedCluster,
    PlannedStage,
    PoolRequest,
    RavnestPlan,
    make_plan,
)
from pipelined.ravnest.planning.pool import PoolNode, check_pool, read_pool
from pipelined.ravnest.planning.ring_layout import rings_between
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules
from tests.unit.pipelined.ravnest.planning.test_formation import SIX

LAYER = LayerSize(parameters=1, activation_bytes=4, input_bytes=4, work=3.0)


def names(plan):
    return [" ".join(node.name for node in cluster.nodes) for cluster in plan.clusters]


def test_open_clusters_are_the_most_that_are_near_enough_to_one_another():
    """Three clusters have a spread of 51 % of the mean."""
    two = make_plan(PoolRequest(SIX, need=13))
    assert (names(two), two.method) == (["a d e", "b c f"], "exhaustive")
    assert two.spread_s == pytest.approx(7 / 30)
    assert names(make_plan(PoolRequest(SIX, need=13, balance=0.51))) == ["a d", "b c", "e f"]


def test_rings_and_the_bytes_of_a_round():
    """120 thousand numbers, cut at 60, at 30 and 90, and nowhere; half of the bytes known for float64."""
    layers = (LayerSize(30_000, 0, 0, 0.0),) * 4
    nodes = iter(SIX)
    clusters = []
    for cuts in ([0, 2, 4], [0, 1, 3, 4], [0, 4]):
        stages = [PlannedStage(next(nodes), low, high, 0, 1) for low, high in pairwise(cuts)]
        clusters.append(PlannedCluster(tuple(stage.node for stage in stages), tuple(stages)))
    rings = tuple(rings_between([cluster.stages for cluster in clusters], layers))
    plan = RavnestPlan(tuple(clusters), (), "exhaustive", "transfer", layers, rings)
    assert [(ring.low, ring.high) for ring in plan.rings] == [
        (0, 30_000),
        (30_000, 60_000),
        (60_000, 90_000),
        (90_000, 120_000),
    ]
    assert [2 * sent for sent in plan.round_bytes().values()] == [
        640_000,
        640_000,
        320_000,
        640_000,
        320_000,
        1_280_000,
    ]


def test_one_cluster_has_no_round():
    """A round's copies are not held either: 40 weights and activations fit exactly."""
    plan = make_plan(PoolRequest((PoolNode("a", 160, 1.0),), (LAYER,) * 8))
    (stage,) = plan.clusters[0].stages
    assert (stage.bytes, stage.alive, plan.round_bytes(), len(plan.rings)) == (160, 1, {"a": 0}, 1)


def test_a_node_too_small_for_any_layer_waits():
    plan = make_plan(PoolRequest((PoolNode("a", 160, 1.0), PoolNode("tiny", 19, 1.0)), (LAYER,) * 8))
    assert [node.name for node in plan.waiting] == ["tiny"] == plan.to_dict()["waiting"]


@pytest.mark.parametrize(
    ("rams", "clusters", "fact"),
    [
        ([100], 1, "missing: 60 B"),
        ([96, 96], 1, r"no cut fits, although the RAM adds up \(clusters: 1, nodes: 2, RAM: 192 B, needed: 1 of 160 B"),
        ([1000, 1000], 3, r"more clusters than nodes \(clusters: 3, nodes: 2\)"),
        ([19, 12], None, r"layer 0 is larger than every node \(layer: 20 B, largest: '0' with 19 B\)"),
    ],
)
def test_a_pool_that_cannot_hold_the_model_is_refused(rams, clusters, fact):
    nodes = tuple(PoolNode(str(i), ram, 1.0) for i, ram in enumerate(rams))
    with pytest.raises(UsageError, match=fact):
        make_plan(PoolRequest(nodes, (LAYER,) * 8, clusters=clusters))


def test_the_newest_weights_fit_where_kept_ones_do_not():
    nodes = tuple(PoolNode(str(i), 96, 1.0) for i in range(2))
    plan = make_plan(PoolRequest(nodes, (LAYER,) * 8, clusters=1, rules=StageRules("newest")))
    assert [(stage.first, stage.end) for stage in plan.clusters[0].stages] == [(0, 4), (4, 8)]


def test_the_exhaustive_search_of_many_nodes_is_refused():
    nodes = tuple(PoolNode(str(i), 100, 1.0) for i in range(13))
    with pytest.raises(UsageError, match=r"takes hours or more \(nodes: 13, at most 12\); take --method genetic"):
        make_plan(PoolRequest(nodes, need=100, clusters=3, method="exhaustive"))
    assert make_plan(PoolRequest(nodes[:12], need=100, clusters=12, method="exhaustive")).method == "exhaustive"


def test_rate_needs_every_speed():
    with pytest.raises(UsageError, match="not known of: a, b, c, d, e, f"):
        make_plan(PoolRequest(SIX, (LAYER,) * 8, objective="rate"))


@pytest.mark.parametrize(
    ("nodes", "fact"),
    [
        ([], "no nodes"),
        ([PoolNode("a", 0, 1.0)], "node 'a' has no RAM"),
        ([PoolNode("a", 1, 1.0), PoolNode("a", 2, 1.0)], "two nodes of the pool are called 'a'"),
    ],
)
def test_a_pool_that_cannot_be_meant_is_refused(nodes, fact):
    with pytest.raises(UsageError, match=fact):
        check_pool(nodes)


def test_a_pool_is_read_with_its_units(tmp_path):
    path = tmp_path / "pool.csv"
    path.write_text("name,ram,bandwidth,flops,reliability\nattic, 4G, 200mbit, 1.5T, 0.9\nshed,512M,1gbit,,\n")
    assert read_pool(path) == (
        PoolNode("attic", 4 << 30, 25e6, 1.5e12, 0.9),
        PoolNode("shed", 512 << 20, 125e6),
    )


def test_a_pool_of_a_spreadsheet_is_read(tmp_path):
    """It begins with a byte-order mark, and a header may have spaces."""
    path = tmp_path / "pool.csv"
    path.write_text("\ufeffname,ram ,bandwidth\r\nattic,4G,200mbit\r\n", encoding="utf-8")
    assert read_pool(path) == (PoolNode("attic", 4 << 30, 25e6),)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("name,ram\na,4G\n", "has the columns name,ram;"),
        ("name,ram,bandwidth,colour\na,4G,1mbit,red\n", "has the columns name,ram,bandwidth,colour;"),
        ("name,ram,bandwidth\na,,1mbit\n", "line 2 needs a name, RAM and bandwidth"),
        ("name,ram,bandwidth\na,4G,1mbit,7\n", "no more values than columns"),
        ("name,ram,bandwidth\na,4X,1mbit\n", "line 2: ram '4X' is no quantity"),
        ("name,ram,bandwidth\na,4G,fast\n", "line 2: bandwidth 'fast' is no quantity"),
        ("name,ram,bandwidth\na,4G,100\n", "line 2: bandwidth '100' is no quantity; .* kbit, mbit, gbit"),
        ("name,ram,bandwidth,flops\na,4G,1mbit,0\n", "a speed of 0 flops"),
        ("name,ram,bandwidth,reliability\na,4G,1mbit,2\n", "reliability is at most 1"),
        ("name,ram,bandwidth\n", "no nodes"),
        ("", "no nodes"),
        ("name,ram,ram,bandwidth\na,4G,8G,1mbit\n", "has the columns name,ram,ram,bandwidth;"),
        ("name,ram,bandwidth\n\na,4G,1mbit\n\nb,4X,1mbit\n", "line 5: ram '4X' is no quantity"),
        ("name,ram,bandwidth\na,1e308G,1mbit\n", "line 2: ram '1e308G' is no quantity"),
        ("name,ram,bandwidth,flops\na,4G,1mbit,1e308T\n", "line 2: flops '1e308T' is no quantity"),
    ],
)
def test_a_wrong_pool_is_refused_with_its_line(tmp_path, text, fact):
    path = tmp_path / "pool.csv"
    path.write_text(text)
    with pytest.raises(UsageError, match=fact):
        read_pool(path)


def test_a_pool_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot read the pool"):
        read_pool(tmp_path / "none.csv")
