"""Which nodes back up which places: the least reliable first, each by the smallest node that can hold it."""

import pytest

from pipelined.errors import UsageError
from pipelined.ravnest.planning.backups import HeldPlace, assign_backups, plan_with_backups
from pipelined.ravnest.planning.plan import PoolRequest
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage import LayerSize


def places(*facts):
    return [HeldPlace(PoolNode(f"n{at}", 100, 1.0, None, sure), 100, size) for at, (sure, size) in enumerate(facts)]


def spare(**ram):
    return [PoolNode(name, size, 1.0) for name, size in ram.items()]


def names(found):
    return {index: node.name for index, node in found.items()}


def test_the_least_reliable_places_come_first_and_unknown_ones_last():
    found = assign_backups(places((None, 5), (0.5, 5), (0.9, 5), (0.1, 5)), spare(a=5, b=5, c=5))
    assert names(found) == {3: "a", 1: "b", 2: "c"}


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
    backed = {stage.node.name: stage.backup.name for each in plan.clusters for stage in each.stages if stage.backup}
    assert backed == {"n3": "n4", "n2": "n5"} and not plan.waiting
    found = [place["backup"] for cluster in plan.plain()["clusters"] for place in cluster["places"]]
    assert sorted(filter(None, found)) == ["n4", "n5"]


def test_a_backup_without_a_place_waits():
    assert [node.name for node in planned(5, 3, clusters=1).waiting] == ["n4"]


@pytest.mark.parametrize("backups", [3, 4])
def test_as_many_backups_as_nodes_are_refused(backups):
    with pytest.raises(UsageError, match=f"no node is left to train .nodes: 3, backups: {backups}"):
        planned(3, backups)


def test_backups_of_nodes_that_are_only_grouped_are_refused():
    with pytest.raises(UsageError, match="leave --backups out"):
        plan_with_backups(PoolRequest(pool(3), need=5, backups=1))
