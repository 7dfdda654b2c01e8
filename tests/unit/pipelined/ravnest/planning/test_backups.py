"""Which nodes back up which places: the least reliable first, each by the smallest node that can hold it."""

import pytest

from pipelined.errors import UsageError
from pipelined.ravnest.planning.backups import HeldPlace, assign_backups, plan_with_backups
from pipelined.ravnest.planning.plan import PoolRequest
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules


def places(*facts):
    return [HeldPlace(PoolNode(f"n{at}", 100, 1.0, None, sure), 100, size) for at, (sure, size) in enumerate(facts)]


def spare(**ram):
    return [PoolNode(name, size, 1.0) for name, size in ram.items()]


def names(found):
    return {index: node.name for index, node in found.items()}


def test_the_least_reliable_places_come_first_and_unknown_ones_last():
    backups = assign_backups(places((None, 5), (0.5, 5), (0.9, 5), (0.1, 5)), spare(a=5, b=5, c=5))
    assert names(backups) == {3: "a", 1: "b", 2: "c"}


def test_the_smallest_node_that_can_hold_a_place_is_taken():
    assert names(assign_backups(places((0.1, 5), (0.2, 9)), spare(large=9, small=6, tiny=4))) == {
        0: "small",
        1: "large",
    }


def test_a_place_that_no_node_can_hold_gets_none():
    assert names(assign_backups(places((0.1, 10), (0.2, 5)), spare(a=6))) == {1: "a"}


def test_a_place_gets_no_backup_if_its_node_has_no_room_for_the_inputs_that_wait():
    assert names(assign_backups([HeldPlace(PoolNode("n", 5, 1.0), 6, 5)], spare(a=9))) == {}


def test_of_two_equal_nodes_the_faster_one_is_taken():
    two = [PoolNode("slow", 9, 1.0, 1.0), PoolNode("fast", 9, 1.0, 2.0)]
    assert names(assign_backups(places((None, 5)), two)) == {0: "fast"}


def pool(many):
    return tuple(PoolNode(f"n{at}", 1 << 20, 1e6, None, 1 - at / 100) for at in range(many))


def planned(many, backups, clusters=2):
    layers = tuple(LayerSize(100, 8, 8, 1.0) for _ in range(4))
    return plan_with_backups(PoolRequest(pool(many), layers, clusters=clusters, backups=backups))


def test_a_plan_makes_the_last_nodes_backups_of_the_least_reliable_places():
    plan = planned(6, 2)
    backed = {
        stage.node.name: stage.backup.name for cluster in plan.clusters for stage in cluster.stages if stage.backup
    }
    assert backed == {"n3": "n4", "n2": "n5"} and not plan.waiting
    backup_names = [place["backup"] for cluster in plan.to_dict()["clusters"] for place in cluster["places"]]
    assert sorted(filter(None, backup_names)) == ["n4", "n5"]


def test_a_backup_without_a_place_waits():
    assert [node.name for node in planned(5, 3, clusters=1).waiting] == ["n4"]


@pytest.mark.parametrize("backups", [3, 4])
def test_as_many_backups_as_nodes_are_refused(backups):
    with pytest.raises(UsageError, match=f"no node is left to train .nodes: 3, backups: {backups}"):
        planned(3, backups)


def test_backups_of_nodes_that_are_only_grouped_are_refused():
    with pytest.raises(UsageError, match="leave --backups out"):
        plan_with_backups(PoolRequest(pool(3), need=5, backups=1))


def backed_plan(nodes, backups, clusters=1, **rules):
    """Two layers over nodes of a name, RAM and reliability, with 14.99 s of delay each way.

    A stage takes 3 s for a microbatch: 12 alive in the first one keep both busy, and of these each is a twelfth of the
    rate. The first stage holds 4 (K + 3) + 4 K bytes, and 16 for the messages that wait beside a backup; the second one
    20, and as many for these.
    """
    pool = tuple(PoolNode(name, ram, 1e9, 1.0, sure, delay=14.99) for name, ram, sure in nodes)
    layers, rules = tuple(LayerSize(1, 4, 8, 3.0) for _ in range(2)), StageRules(behind=2, **rules)
    return plan_with_backups(PoolRequest(pool, layers, clusters=clusters, backups=backups, rules=rules))


def narrow(ram, spare, **rules):
    """One cluster, of which the first node is the less reliable one."""
    nodes = [("first", ram, 0.5), ("second", 100, 0.9), ("spare", spare, 0.9)]
    return backed_plan(nodes, 1, **rules).clusters[0]


@pytest.mark.parametrize(
    ("ram", "spare", "alive", "backed"),
    [
        (124, 124, 12, "first"),  # 4 * 15 + 4 * 12 + 16
        (123, 124, 11, "first"),  # 116 fit, and 11 of 12 alive are 92 % of the rate
        (124, 123, 11, "first"),
        (116, 116, 11, "first"),
        (115, 116, 12, "second"),  # 10 alive are 83 %
        (124, 115, 12, "second"),
    ],
)
def test_fewer_are_alive_where_that_leaves_room_for_a_backup_at_a_tenth_of_the_rate_at_most(ram, spare, alive, backed):
    cluster = narrow(ram, spare)
    first, second = cluster.stages
    assert (first.alive, second.alive) == (alive, 1)
    assert [stage.node.name for stage in cluster.stages if stage.backup] == [backed]
    assert first.bytes == 4 * (alive + 3) + 4 * alive + 16 * (backed == "first")
    assert cluster.pace.share == pytest.approx(alive / 12, abs=0.01) and cluster.pace.alive[0] == alive
    assert ("fewer microbatches alive leave room for a backup" in cluster.pace_text) == (alive < 12)


def test_a_given_number_alive_stays_where_it_leaves_no_room():
    first, second = narrow(123, 124, ahead=12).stages
    assert first.alive == 12 and second.backup is not None


@pytest.mark.parametrize(
    ("ram", "alive"),
    [(132, {"a": 12, "c": 12}), (131, {"a": 12, "c": 11}), (124, {"a": 12, "c": 11}), (123, {"a": 12, "b": 1})],
)
def test_fewer_are_alive_in_the_cluster_that_needs_it_alone(ram, alive):
    """With the copies of a round a stage holds 4 (K + 5) + 4 K bytes; the first of each cluster is less reliable."""
    nodes = [("a", 140, 0.5), ("b", 60, 0.9), ("c", ram, 0.6), ("d", 60, 0.9), ("e", 140, 0.9), ("f", 140, 0.9)]
    plan = backed_plan(nodes, 2, clusters=2)
    assert {each.node.name: each.alive for one in plan.clusters for each in one.stages if each.backup} == alive


def test_fewer_are_alive_for_one_more_backup_but_not_for_one_that_a_less_reliable_place_loses():
    """Both spare nodes back a place: the first one's, for which 11 alive make room, and the second one's."""
    nodes = [("first", 123, 0.9), ("second", 100, 0.5), ("spare", 124, 0.9), ("small", 36, 0.9)]

    def planned(nodes, backups):
        (cluster,) = backed_plan(nodes, backups).clusters
        return {each.node.name: (each.alive, each.backup and each.backup.name) for each in cluster.stages}

    assert planned(nodes, 2) == {"first": (11, "spare"), "second": (1, "small")}
    assert planned(nodes[:3], 1) == {"first": (12, None), "second": (1, "spare")}
