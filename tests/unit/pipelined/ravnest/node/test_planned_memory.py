"""The bytes of places of two layers, by hand: 100 parameters of 4 bytes and 8 bytes of activations in each layer.

A stage of two holds its 800 bytes four times (the version of the one microbatch alive, a gradient, two moments), and 16
bytes of activations.
"""

import pytest

from pipelined.ravnest.cluster_place import ClusterPlace
from pipelined.ravnest.node.planned_memory import PlannedPlaces
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules
from pipelined.ravnest.records.generation import BackupPlace, Continuation, Generation
from pipelined.ravnest.records.places import Holder, StagePlace

LAYERS = tuple(LayerSize(100, 8, 8, 1.0) for _ in range(4))
ALONE, EACH = 4 * 800 + 16, 8
"""Bytes of a stage, and of the one message that it gets for a microbatch."""


def generation(many=1, continuation=None, room=None):
    def place(name, first, end):
        return StagePlace(Holder(name, f"at {name}", 1), first, end, 1)

    rows = [[place(f"{n}a", 0, 2), place(f"{n}b", 2, 4)] for n in range(many)]
    backups = [] if room is None else [BackupPlace(0, 1, Holder("spare", "at spare", 1), room)]
    return Generation(9, rows, continuation=continuation or Continuation(), backups=backups)


BACKED = ClusterPlace(0, 1)


def planned(of, place=BACKED, name="0b", **rules):
    return PlannedPlaces(LAYERS, StageRules(**rules)).bytes_of(of, place, name)


@pytest.mark.parametrize(("saves", "copies"), [(False, 0), (True, 3)])
def test_a_cluster_alone_holds_no_copies_of_a_round_but_what_it_saves_with_the_moments(saves, copies):
    assert planned(generation(), saves=saves) == ALONE + copies * 800


def test_each_of_several_clusters_holds_two_copies_of_a_round():
    assert planned(generation(2), ClusterPlace(1, 0), "1a") == ALONE + 2 * 800


def test_the_first_cluster_also_holds_the_moments_that_late_ones_get():
    of = generation(2, Continuation(1, late_clusters=1, steps_since_round=[[]]))
    assert planned(of) == ALONE + 4 * 800
    assert planned(of, ClusterPlace(1, 0), "1a") == ALONE + 2 * 800


@pytest.mark.parametrize("name", ["0b", "spare"])
def test_both_nodes_of_a_place_hold_the_messages_that_wait_there(name):
    assert planned(generation(room=0), name=name, behind=2) == ALONE + 2 * EACH


def test_the_other_places_hold_none_of_them():
    assert planned(generation(room=0), ClusterPlace(0, 0), "0a", behind=2) == ALONE


def test_a_new_backup_holds_what_it_gets_beside_what_it_began_with_and_as_many_messages_as_it_has_room_for():
    of = generation(continuation=Continuation(1, steps_since_round=[[]]), room=5)
    assert planned(of, name="spare", behind=2) == 5 * 800 + 5 * EACH


def test_the_node_of_its_place_holds_a_copy_of_what_it_gives():
    of = generation(continuation=Continuation(1, steps_since_round=[[]]), room=5)
    assert planned(of, behind=2) == ALONE + 3 * 800
