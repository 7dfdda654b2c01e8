"""Records are read as they were written, and a malformed one is refused with the field's name."""

import msgpack
import pytest

from pipelined.membership.directory.limits import DirectoryLimits
from pipelined.state.stages.versions import MAX_STAGES, SavedStages
from pipelined.swarm.records.members import LeaderRecord, PeerRecord, Phase, TrainerRecord
from pipelined.swarm.records.steps import HEAD, STEP_MEMBERS, Head, StepMembers, members_key

RECORDS = [
    PeerRecord("p0", "tcp://a:1", 7, 2, Phase.SERVING, "m", successor="p1"),
    TrainerRecord("t0", "tcp://b:1", 8, "m"),
    LeaderRecord("t0", "tcp://b:1"),
    Head(2, "m", step=3, round="4.1", members=[[]], scale=0.5, loss=1.5, norm=2.0, moves={"p2": 0}),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_comes_back(record):
    assert type(record).unpack(record.pack()) == record


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_field_too_few_too_many_or_of_another_kind_is_refused(record):
    told = msgpack.unpackb(record.pack(), strict_map_key=False)
    for name in told:
        fewer = {other: value for other, value in told.items() if other != name}
        for changed in (fewer, {**told, "strange": 1}):
            with pytest.raises(ValueError, match=f"not a {type(record).__name__}"):
                type(record).unpack(msgpack.packb(changed))
        with pytest.raises(ValueError, match=f"{type(record).__name__}.{name} is a bytes"):
            type(record).unpack(msgpack.packb({**told, name: b"x"}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"x" * 100,
        msgpack.packb([1]),
        msgpack.packb({1: 2}),
        b"\x91" * 5000,
        b"\x81\x90\x01",
        b"\x81\x80\x01",
    ],
)
def test_what_is_no_map_of_names_is_refused(data):
    with pytest.raises(ValueError, match="not a Head"):
        Head.unpack(data)


@pytest.mark.parametrize(
    "changed", [{"members": [1]}, {"members": [[1]]}, {"moves": {"a": "b"}}, {"stages": 0}, {"step": -1}]
)
def test_a_head_of_no_model_is_refused(changed):
    told = msgpack.unpackb(RECORDS[-1].pack()) | changed
    with pytest.raises(ValueError, match="Head"):
        Head.unpack(msgpack.packb(told))


@pytest.mark.parametrize("stage, phase", [(-1, "serving"), (MAX_STAGES, "serving"), (0, "gone")])
def test_a_peer_of_a_stage_or_phase_that_cannot_be_is_refused(stage, phase):
    told = {**PeerRecord("p", "tcp://a:1", 1, 0, "serving", "m").stored(), "stage": stage, "phase": phase}
    with pytest.raises(ValueError, match="out of range"):
        PeerRecord.unpack(msgpack.packb(told))


def test_a_head_of_more_stages_than_a_model_can_have_is_refused_before_any_list_of_them_is_made():
    assert Head.unpack(Head(MAX_STAGES, "m").pack()).stages == MAX_STAGES
    with pytest.raises(ValueError, match="out of range"):
        Head.unpack(msgpack.packb({**Head(1, "m").stored(), "stages": 1 << 60}))


@pytest.mark.parametrize("members", [10_000, DirectoryLimits().leases])
@pytest.mark.parametrize("stages", [1, 400])
def test_a_commit_of_ten_thousand_members_fits_in_a_transaction_however_long_their_names_are(members, stages):
    every = [f"{'a-machine-of-a-long-name' * 20}-{at}" for at in range(members)]
    names = [every[stage::stages] for stage in range(stages)]
    head = Head(stages, "m", step=1, members=names)
    entries = head.entries({})
    DirectoryLimits().check_transaction({HEAD: 1, "conductor": 2}, entries, [])
    read = Head.unpack(entries[HEAD]).with_members(StepMembers.unpack(entries[key]) for key in entries if key != HEAD)
    assert read == head and read.had_member(names[-1][-1], stages - 1)
    assert not read.had_member("another", 0) and sum(map(len, read.members)) == members


def test_a_commit_reports_the_members_of_those_stages_alone_where_they_are_others_than_before():
    before = Head(3, "m", step=1, members=[["a", "b"], ["c"], ["d"]])
    known = {
        key.removeprefix(STEP_MEMBERS): StepMembers.unpack(value)
        for key, value in before.entries({}).items()
        if key != HEAD
    }
    assert before.entries(known).keys() == {HEAD}
    assert Head(3, "m", step=2, members=[["b", "a"], ["e"], ["d"]]).entries(known).keys() == {HEAD, members_key(1)}


def test_members_that_were_written_as_names_are_read():
    """A directory's journal may have them: in `took/N` and, before that, in the head."""
    head = Head.unpack(msgpack.packb(Head(2, "m", step=3).stored() | {"members": [["p0"], ["p1", "p2"]]}))
    assert [head.had_member(name, 1) for name in ("p0", "p1", "p2")] == [False, True, True] and head.was_summed
    took = StepMembers.unpack(msgpack.packb({"members": {1: ["p3"]}}))
    assert head.with_members([took]).had_member("p3", 1)


@pytest.mark.parametrize("members", [{0: b"1234567"}, {0: [1]}, {"0": b""}, {-1: b""}, {MAX_STAGES: b""}, {0: "p0"}])
def test_malformed_members_are_rejected(members):
    with pytest.raises(ValueError, match="StepMembers"):
        StepMembers.unpack(msgpack.packb({"members": members}))


def test_fields_are_stored_under_the_words_of_the_first_version():
    peer = PeerRecord("p0", "tcp://a:1", 7, 2, Phase.SERVING, "m", successor="p1")
    commit = Head(1, "m", step=3, lineage="run-3", parameter_version="run-2")
    saved = SavedStages([[5, 0, 1, "run-5"]])
    assert (peer.stored()["heir"], commit.stored()["basis"], saved.stored()["marks"]) == ("p1", "run-2", saved.saved)
    assert [type(each).unpack(each.pack()) for each in (peer, commit, saved)] == [peer, commit, saved]
