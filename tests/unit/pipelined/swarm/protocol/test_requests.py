"""Every request and reply of a swarm: it arrives as it was sent, and any other bytes are malformed and nothing else."""

import dataclasses
import re

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelined.membership.messaging import fields
from pipelined.membership.messaging.messages import VERSION, MemberRequest, OtherVersion
from pipelined.membership.messaging.reasons import Reason
from pipelined.process.reporting.events import Event
from pipelined.swarm.protocol.status import EventSchema
from tests.docs.swarm_requests import REQUESTS
from tests.launching import ROOT
from transports import Block
from transports.rpc import Party, Request

SENDER = Party("virtual://sender", 1)
REPLIES = sorted({kind.reply() for kind in REQUESTS}, key=lambda kind: kind.__name__)
ARRAYS = st.sampled_from(["float32", "float64", "int64", "uint8"]).flatmap(
    lambda dtype: st.lists(st.integers(0, 9), max_size=3).map(lambda values: np.array(values, dtype))
)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=20,
)


def plain_values(schema):
    """Values of a schema that msgpack carries as it is, from what its text says."""
    most = re.search(r"to ([\d,]+)|most (\d+)|^(\d+) bytes", schema.text)
    limit = int(next(filter(None, most.groups())).replace(",", "")) if most else fields.MAX_INTEGER
    if schema is fields.FLAG:
        return st.booleans()
    kinds = {
        "whole": st.integers(0, limit),
        "number": st.floats(0 if "from 0" in schema.text else -fields.MAX_NUMBER, fields.MAX_NUMBER),
        "text": st.text(max_size=min(20, limit)),
        "any": st.none(),
    }
    return kinds.get(schema.text.split()[0], st.binary(min_size=limit, max_size=limit))


def values(schema):
    """Values of a schema."""
    match schema:
        case fields.PlainValue():
            return plain_values(schema)
        case fields.ListOf(pairs=True):
            return st.dictionaries(*map(values, (schema.item.fields[0][1], schema.item.fields[1][1])), max_size=3)
        case fields.ListOf():
            return st.lists(values(schema.item), min_size=schema.min_items, max_size=schema.min_items + 3).map(tuple)
        case fields.Nullable():
            return st.none() | values(schema.schema)
        case fields.OneArray():
            return st.sampled_from(schema.dtypes).map(lambda dtype: np.arange(3).astype(dtype))
        case EventSchema():
            return st.builds(lambda at, kind: Event(at, 20, kind, {"n": 1}), st.floats(0, 1e9), st.sampled_from("ab"))
        case fields.Arrays():
            return st.lists(ARRAYS.map(Block.of), max_size=3).map(tuple)
        case fields.FieldList():
            return st.tuples(*(values(part) for _, part in schema.fields)).map(lambda parts: schema.build(*parts))
    raise AssertionError(schema)


def carried(note, arrays):
    """What arrives of a note and arrays."""
    return msgpack.unpackb(msgpack.packb(note), strict_map_key=False), tuple(map(Block.of, arrays))


def plainly(value):
    """A value without arrays, for comparison."""
    if dataclasses.is_dataclass(value) and not isinstance(value, Block):
        return [plainly(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple | list):
        return [plainly(each) for each in value]
    if isinstance(value, np.ndarray | Block):
        array = Block.of(value).numpy()
        return [array.dtype.name, array.shape, array.tolist()]
    return value


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(st.data(), st.integers(0, fields.MAX_INTEGER))
def test_a_request_arrives_as_it_was_sent(kind, data, incarnation):
    sent = data.draw(values(fields.schema_of(kind)))
    note, blocks = carried(*sent.packed(incarnation))
    got, to = kind.parse(Request(SENDER, kind.topic, note, blocks))
    assert to == incarnation and plainly(got) == plainly(sent)


@pytest.mark.parametrize("kind", REPLIES, ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(st.data())
def test_a_reply_arrives_as_it_was_sent(kind, data):
    sent = data.draw(values(fields.schema_of(kind)))
    response = sent.response()
    assert plainly(kind.parse(*carried(response.note, response.blocks))) == plainly(sent)


@pytest.mark.parametrize("kind", [*REQUESTS, *REPLIES], ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(st.data())
def test_any_note_and_any_arrays_are_read_or_malformed(kind, data):
    """Half of them are messages of this kind with one plain value replaced."""
    wrong, arrays = data.draw(PLAIN), data.draw(st.lists(ARRAYS, max_size=3))
    if data.draw(st.booleans()):
        note = []
        fields.schema_of(kind)
        note = fields.schema_of(kind).write(data.draw(values(fields.schema_of(kind))), arrays)
        if note:
            note[data.draw(st.integers(0, len(note) - 1))] = wrong
        wrong = note
    try:
        if issubclass(kind, MemberRequest):
            prefix = [VERSION, 0] if data.draw(st.booleans()) else []
            note = [*prefix, *wrong] if isinstance(wrong, list) else wrong
            kind.parse(Request(SENDER, kind.topic, note, tuple(map(Block.of, arrays))))
        else:
            kind.parse(wrong, tuple(map(Block.of, arrays)))
    except (fields.Malformed, OtherVersion):
        pass


@pytest.mark.parametrize(
    "note, there", [({"to": 3}, 1), (None, 1), ([1, 0], 1), ([VERSION + 1, 0], VERSION + 1), ([], 1)]
)
def test_a_request_of_another_version_is_rejected_with_both_numbers(note, there):
    for kind in REQUESTS:
        with pytest.raises(OtherVersion) as caught:
            kind.parse(Request(SENDER, kind.topic, note))
        assert caught.value.reason == Reason.OTHER_VERSION
        assert caught.value.facts == {"here": VERSION, "there": there}


def test_more_arrays_than_a_message_has_are_malformed():
    for kind in REQUESTS:
        with pytest.raises(fields.Malformed):
            kind.parse(Request(SENDER, kind.topic, [VERSION, 0], (Block.of(np.zeros(1)),)))


def test_topics_differ():
    assert len({kind.topic for kind in REQUESTS}) == len(REQUESTS)


def test_all_messages_are_documented():
    for kind in (*REQUESTS, *REPLIES):
        text = " ".join(base.__doc__ for base in kind.__mro__)
        for field in dataclasses.fields(kind):
            assert field.name in text or field.name == "arrays", (kind.__name__, field.name)


def test_no_other_module_writes_or_reads_a_note_or_names_a_reason_by_its_word():
    rooms = [ROOT / "pipelined" / room for room in ("swarm", "membership", "state")]
    other_rooms = ROOT / "pipelined/state/checkpoints", ROOT / "pipelined/membership/directory"
    modules = {
        str(path.relative_to(ROOT / "pipelined"))
        for room in rooms
        for path in room.rglob("*.py")
        if not {*other_rooms} & {*path.parents}
        and re.search(r'\bnote=|\b(?:request|response|reply)\.note\b|Rejected\("', path.read_text())
    }
    assert modules == {"membership/messaging/messages.py"}
