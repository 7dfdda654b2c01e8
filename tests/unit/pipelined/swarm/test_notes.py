"""What is not as it should be is refused, and what is comes back as it was told."""

import numpy as np
import pytest

from pipelined.swarm.notes import check_layouts, digest_of, field, read_members, read_round, tell_members, whole
from pipelined.swarm.records import Peer, Phase
from transports import Block
from transports.endpoints import Refusal

STRANGE = [None, True, -1, 1.0, "1", [1], {"a": 1}, 1 << 62]


@pytest.mark.parametrize("note", [None, 3, "x", [1]])
def test_what_is_no_note_has_no_fields(note):
    with pytest.raises(Refusal, match="no note"):
        field(note, "step")


@pytest.mark.parametrize("value", STRANGE)
def test_only_numbers_from_0_up_are_taken(value):
    with pytest.raises(Refusal, match="step is not a number"):
        whole({"step": value}, "step")


@pytest.mark.parametrize("value", [*STRANGE, [], [1, 2, 3], [1, -1], [True, 1], [1, 1 << 62]])
def test_only_two_numbers_are_a_round(value):
    with pytest.raises(Refusal, match="not a round"):
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
    with pytest.raises(Refusal, match="member"):
        read_members(value)


@pytest.mark.parametrize("wanted", [[], [("float32", (2,))], [("float64", (2, 1))], [("float64", (2,))] * 2])
def test_arrays_are_of_exactly_the_layouts_wanted(wanted):
    blocks = [Block.of(np.zeros(2))]
    check_layouts(blocks, [("float64", (2,))])
    with pytest.raises(Refusal, match="other arrays"):
        check_layouts(blocks, wanted)


def test_a_digest_tells_zeros_apart():
    assert digest_of(np.array([0.0])) == digest_of(np.array([0.0])) != digest_of(np.array([-0.0]))
