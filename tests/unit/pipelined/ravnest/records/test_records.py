"""The records of Ravnest come back as they went, and what is no record is refused."""

import msgpack
import pytest

from pipelined.ravnest.records.generation import BackupPlace, Continuation, Generation, GenerationEnding
from pipelined.ravnest.records.nodes import DepartureCounts, NodeRecord, WaitingNodes
from pipelined.ravnest.records.places import Holder, StagePlace
from pipelined.ravnest.records.progress import ClusterProgress, ClusterStop, RoundRecord
from pipelined.state.stages.versions import Version

ROW = [StagePlace(Holder("a", "at a", 7), 0, 2, 3), StagePlace(Holder("b", "at b", 8), 2, 5, 1)]
OTHER = [StagePlace(Holder("c", "at c", 9), 0, 5, 1)]
STORED, OTHER_STORED = [["a", "at a", 7, 0, 2, 3], ["b", "at b", 8, 2, 5, 1]], [["c", "at c", 9, 0, 5, 1]]
"""These rows as every release writes them."""


def test_clusters_come_back_and_know_each_place():
    generation = Generation.unpack(Generation(4, [ROW, OTHER], Version(6, "run-3")).pack())
    assert generation == Generation(4, [ROW, OTHER], Version(6, "run-3"))
    assert [generation.step_of(1, own) for own in range(3)] == [7, 9, 11]
    assert generation.place_of(node("b", 8)) == (0, 1) and generation.place_of(node("c", 9)) == (1, 0)
    assert generation.place_of(node("d", 10)) is None
    assert generation.place_of(node("b", 11)) is None, "it left, and joined again"


def test_each_place_is_stored_as_one_list():
    assert Generation(4, [ROW, OTHER]).stored()["rows"] == [STORED, OTHER_STORED]


def test_clusters_that_an_earlier_release_wrote_do_not_go_on():
    old = Generation(4, [ROW, OTHER], Version(6, "run-3")).stored()
    del old["going"]
    assert Generation.unpack(msgpack.packb(old)) == Generation(4, [ROW, OTHER], Version(6, "run-3"))


def test_backups_and_nodes_that_an_earlier_release_wrote_have_no_room_and_save_nothing():
    backed = Generation(4, [ROW, OTHER], backups=[BackupPlace(0, 1, Holder("z", "at z", 9), 7)])
    assert Generation.unpack(backed.pack()) == backed
    old = backed.stored() | {"backups": [[0, 1, ["z", "at z", 9]]]}
    assert Generation.unpack(msgpack.packb(old)).backups == [BackupPlace(0, 1, Holder("z", "at z", 9))]
    written = node("a", 1).stored()
    del written["saves"]
    assert NodeRecord.unpack(msgpack.packb(written)) == node("a", 1)


@pytest.mark.parametrize("backup", [[0, 1], [0, 1, ["z", "at z", 9], -1], [0, 9, ["z", "at z", 9], 0], [0, 1, 2, 3]])
def test_backups_of_no_place_or_with_no_room_are_refused(backup):
    stored = Generation(4, [ROW, OTHER]).stored() | {"backups": [backup]}
    with pytest.raises(ValueError, match="backup"):
        Generation.unpack(msgpack.packb(stored))


def test_steps_of_lost_clusters_come_first():
    generation = Generation(4, [ROW, OTHER], Version(6, ""), Continuation(3, 2, 1, [2, 5, 7], [[]]))
    assert Generation.unpack(generation.pack()) == generation
    assert [generation.step_of(turn % 2, turn // 2) for turn in range(5)] == [2, 5, 7, 9, 10]
    for turn, step in enumerate([2, 5, 7, 9, 10]):
        assert generation.own_step(turn % 2, step) == turn // 2
        assert generation.own_step(1 - turn % 2, step) is None
    assert generation.own_step(0, 3) is generation.own_step(1, -4) is None
    assert generation.established_clusters == 1 and generation.opening_rounds == 1


@pytest.mark.parametrize(
    ("going", "fact"),
    [
        ([], "not a list of 5 fields"),
        ([1], "not a list of 5 fields"),
        ([-1, 0, 1, [], [[]]], "previous has"),
        ([1, "a", 1, [], [[]]], "rounds has"),
        ([1, 0, 2, [], []], "late_clusters has"),
        ([1, 0, 0, [], []], "steps_since_round has"),
        ([1, 0, 1, [-1], [[]]], "steps_to_repeat has"),
        ([1, 0, 1, [], [["a"]]], "steps_since_round has"),
        ([0, 0, 1, [], []], "late_clusters has"),
    ],
)
def test_a_continuation_is_refused_by_the_name_of_its_wrong_field(going, fact):
    with pytest.raises(ValueError, match=rf"Generation\.going: {fact}"):
        Generation.unpack(
            msgpack.packb({"number": 4, "rows": [STORED, OTHER_STORED], "begun": [6, ""], "going": going})
        )


@pytest.mark.parametrize(
    ("record", "stored"),
    [
        (
            Generation(4, [OTHER]),
            {"number": 4, "rows": [OTHER_STORED], "begun": [0, ""], "going": [0, 0, 0, [], []], "backups": []},
        ),
        (GenerationEnding(4), {"clusters": 4}),
        (ClusterStop(4, 6, [7, 9]), {"clusters": 4, "done": 6, "apart": [7, 9]}),
        (
            ClusterProgress(4, 6, 0.5, [1.0], 0.1, ""),
            {"clusters": 4, "step": 6, "loss": 0.5, "staleness": [1.0], "seconds": 0.1, "digest": ""},
        ),
        (
            RoundRecord(4, 2, [[1, 0]], "a sent it"),
            {"clusters": 4, "number": 2, "refused": [[1, 0]], "fact": "a sent it"},
        ),
        (WaitingNodes("for others"), {"fact": "for others"}),
    ],
    ids=lambda each: type(each).__name__,
)
def test_records_are_stored_as_earlier_releases_wrote_them(record, stored):
    assert msgpack.unpackb(record.pack()) == stored
    assert type(record).unpack(record.pack()) == record


def node(name, incarnation):
    return NodeRecord(name, f"at {name}", incarnation, 1, 1.0, 0.0)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [[]],
        [STORED[:1], OTHER_STORED],
        [STORED[1:]],
        [STORED, STORED],
        [["a"]],
        [[["a", "at a", 7, 0, 2, 0]]],
        [[["a", "at a", 7, 2, 2, 1]]],
        [[["a", "at a", 7, 0, True, 1]]],
        [[["a", "at a", 7, 0, 2, 1 << 20]]],
        [[[f"{n}", f"at {n}", 7, n, n + 1, 1] for n in range(5000)]],
    ],
)
def test_rows_that_are_no_clusters_are_refused(rows):
    with pytest.raises(ValueError, match=r"Generation\.rows"):
        Generation.unpack(msgpack.packb({"number": 1, "rows": rows, "begun": [0, ""]}))


@pytest.mark.parametrize("begun", [[], [1], ["", ""], [-1, ""], [True, ""], [1, "run-3", 4]])
def test_clusters_that_begin_with_no_save_are_refused(begun):
    with pytest.raises(ValueError, match=r"Generation\.begun"):
        Generation.unpack(msgpack.packb({"number": 1, "rows": [OTHER_STORED], "begun": begun}))


STRANGE = [
    {"ram": 0},
    {"bandwidth": 0.0},
    {"flops": -1.0},
    {"bandwidth": float("nan")},
    {"delay": -1.0},
    {"delay": 1e9},
    {"reliability": 1.5},
]


@pytest.mark.parametrize("change", STRANGE)
def test_a_node_without_ram_or_line_is_refused(change):
    """A record without a delay and a reliability is one of a release that had neither."""
    good = {"name": "a", "address": "at a", "incarnation": 1, "ram": 5, "bandwidth": 2.0, "flops": 0.0}
    node = NodeRecord.unpack(msgpack.packb(good)).pool_node
    assert (node.flops, node.delay, node.reliability) == (None, 0.0, 1.0)
    with pytest.raises(ValueError, match="NodeRecord"):
        NodeRecord.unpack(msgpack.packb(good | change))


def test_progress_has_numbers_alone():
    good = ClusterProgress(generation=1, step=3, loss=2.5, staleness=[1.0, 0.0], seconds=0.1, digest="")
    assert ClusterProgress.unpack(good.pack()) == good
    with pytest.raises(ValueError, match=r"ClusterProgress\.staleness"):
        ClusterProgress.unpack(msgpack.packb(good.stored() | {"staleness": ["late"]}))


def test_each_incarnation_of_a_name_is_counted_once():
    first = DepartureCounts().with_departed([Holder("a", "at a", 7), Holder("b", "at b", 8)])
    counts = first.with_departed([Holder("a", "at a", 7), Holder("a", "at a", 9)])
    assert [counts.count(name) for name in "abc"] == [2, 1, 0]
    assert DepartureCounts.unpack(counts.pack()) == counts == counts.with_departed([Holder("a", "at a", 8)])


def test_of_too_many_names_those_that_left_last_are_kept(monkeypatch):
    monkeypatch.setattr("pipelined.ravnest.records.nodes.MAX_NAMES", 2)
    counts = DepartureCounts().with_departed(Holder(name, f"at {name}", 9 - at) for at, name in enumerate("abc"))
    assert counts.names == {"a": [1, 9], "b": [1, 8]}


@pytest.mark.parametrize("names", [{1: [1, 2]}, {"a": 1}, {"a": [1]}, {"a": [1, -1]}, {"a": [1, "x"]}, []])
def test_counts_of_losses_that_are_none_are_refused(names):
    with pytest.raises(ValueError, match="DepartureCounts"):
        DepartureCounts.unpack(msgpack.packb({"names": names}))
