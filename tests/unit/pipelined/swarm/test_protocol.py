"""What is not as it should be is refused, and what is comes back as it was told."""

import numpy as np
import pytest

from pipelined.membership.records import Peer, Phase
from pipelined.swarm.protocol import (
    Score,
    WorkReport,
    check_layouts,
    digest_of,
    read_members,
    read_round,
    read_work_report,
    tell_members,
)
from transports import Block
from transports.rpc import Rejected
from transports.rpc.fields import field, whole

STRANGE = [None, True, -1, 1.0, "1", [1], {"a": 1}, 1 << 62]


@pytest.mark.parametrize("note", [None, 3, "x", [1]])
def test_what_is_no_note_has_no_fields(note):
    with pytest.raises(Rejected, match="no note"):
        field(note, "step")


@pytest.mark.parametrize("value", STRANGE)
def test_only_numbers_from_0_up_are_taken(value):
    with pytest.raises(Rejected, match="step is not a number"):
        whole({"step": value}, "step")


@pytest.mark.parametrize("value", [*STRANGE, [], [1, 2, 3], [1, -1], [True, 1], [1, 1 << 62]])
def test_only_two_numbers_are_a_round(value):
    with pytest.raises(Rejected, match="not a round"):
        read_round(value)


def test_rounds_are_in_the_order_of_terms_and_then_of_attempts():
    assert read_round([1, 9]) < read_round([2, 1]) < read_round([2, 2])


def test_members_are_read_as_they_were_told():
    members = [Peer("b", "tcp://b:1", 7, 3, Phase.SERVING, "m"), Peer("a", "tcp://a:1", 9, 3, Phase.LEAVING, "m")]
    read = read_members(tell_members(members))
    assert [(each.name, each.address, each.incarnation) for each in read] == [
        ("b", "tcp://b:1", 7),
        ("a", "tcp://a:1", 9),
    ]


@pytest.mark.parametrize("value", [None, [], {}, [1], [["a", "b"]], [["a", "b", "1"]], [["a", "b", True]]])
def test_what_are_no_members_is_refused(value):
    with pytest.raises(Rejected, match="member"):
        read_members(value)


@pytest.mark.parametrize("wanted", [[], [("float32", (2,))], [("float64", (2, 1))], [("float64", (2,))] * 2])
def test_arrays_are_of_exactly_the_layouts_wanted(wanted):
    blocks = [Block.of(np.zeros(2))]
    check_layouts(blocks, [("float64", (2,))])
    with pytest.raises(Rejected, match="other arrays"):
        check_layouts(blocks, wanted)


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_of_fewer_samples_arrays_are_taken_only_where_they_may_be(samples):
    blocks, wanted = [Block.of(np.zeros((samples, 5)))], [("float64", (3, 5))]
    check_layouts(blocks, wanted, fewer=True)
    if samples < 3:
        with pytest.raises(Rejected, match="other arrays"):
            check_layouts(blocks, wanted)


@pytest.mark.parametrize("shape", [(), (0, 5), (4, 5), (2, 4), (2, 5, 1), (2,)])
def test_of_no_samples_or_other_sizes_arrays_are_never_taken(shape):
    with pytest.raises(Rejected, match="other arrays"):
        check_layouts([Block.of(np.zeros(shape))], [("float64", (3, 5))], fewer=True)


def test_what_a_slot_is_through_with_is_read_as_it_was_told():
    told = {"step": 3, "revision": 9, "index": 1, "counted": [[0, "p0"], [1, "p1"]]}
    assert read_work_report(told, stages=2) == WorkReport(3, 9, 1, {0: "p0", 1: "p1"}, None)
    scored = {**told, "counted": [], "score": [2.5, 4]}
    assert read_work_report(scored, stages=2) == WorkReport(3, 9, 1, {}, Score(2.5, 4))
    assert read_work_report(None, stages=2) is None


@pytest.mark.parametrize(
    "score", [3, [], [1.0], [float("nan"), 1], [float("inf"), 1], ["1", 1], [1.0, -1], {"loss": 1.0}]
)
def test_a_score_that_is_none_is_refused(score):
    with pytest.raises(Rejected, match=r"loss|samples"):
        read_work_report({"step": 0, "revision": 1, "index": 0, "counted": [], "score": score}, stages=1)


def test_a_digest_tells_zeros_apart():
    assert digest_of(np.array([0.0])) == digest_of(np.array([0.0])) != digest_of(np.array([-0.0]))
