"""Counting the unexpected messages that a receiver keeps, at both ends, without either trusting the other."""

import gc
import tracemalloc
from types import SimpleNamespace

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transports import Block, WireError
from transports.mailbox import Mailbox
from transports.stream.incoming import FRAME_BYTES, IncomingBuffer, IncomingMessage, header_memory
from transports.tcp.flow_control import ALL_PEERS_BYTES, MIN_BYTES, Credit, credit_limit
from transports.wire.frames import pack_header, unpack_header

COST = 1000
SENDER = SimpleNamespace()
LIMIT = 100 * COST


def test_all_peers_share_what_may_lie_at_a_rank_but_none_has_less_than_the_least():
    assert credit_limit(1) == credit_limit(2) == ALL_PEERS_BYTES
    assert credit_limit(5) == ALL_PEERS_BYTES // 4
    assert credit_limit(10_000) == MIN_BYTES


def test_bytes_beyond_the_limit_wait_until_some_are_consumed():
    credit = Credit(LIMIT)
    assert all(credit.acquire(COST) for _ in range(100))
    assert not credit.acquire(COST)
    credit.on_credit(COST)
    assert credit.acquire(COST) and not credit.acquire(COST)
    credit.release(COST)
    assert credit.acquire(COST)


def test_the_error_for_a_peer_beyond_its_limit_has_both_numbers():
    credit = Credit(LIMIT)
    with pytest.raises(WireError, match=rf"bytes: {LIMIT + 1}, limit: {LIMIT}"):
        credit.on_received(LIMIT + 1)


@pytest.mark.parametrize("claimed", [0, -1, COST + 1, "1", None, True])
def test_more_credit_than_was_spent_is_refused(claimed):
    credit = Credit(LIMIT)
    credit.acquire(COST)
    with pytest.raises(WireError, match="more credit than was spent"):
        credit.on_credit(claimed)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, LIMIT)), max_size=300))
def test_both_ends_agree_and_credit_always_comes_back(steps):
    sender, receiver, lying = Credit(LIMIT), Credit(LIMIT), []
    for sends, cost in steps:
        if sends and sender.acquire(cost):
            receiver.on_received(cost)
            lying.append(cost)
        elif not sends and lying:
            told = receiver.on_consumed(lying.pop())
            if told:
                sender.on_credit(told)
        assert sum(lying) <= LIMIT
    told = sum(receiver.on_consumed(cost) for cost in lying)
    if told:
        sender.on_credit(told)
    assert sender.acquire(3 * LIMIT // 4)


NOTES = {
    "none": None,
    "empty lists": [[]] * 60_000,
    "empty maps": [{}] * 60_000,
    "maps of one": [{300: 300}] * 9000,
    "maps in maps": [{1: {1: {1: {}}}}] * 6000,
    "short texts": ["ab"] * 20_000,
    "a text of four bytes a character": "😀" + "a" * 60_000,
    "a long text": "a" * 60_000,
    "bytes": [b"ab"] * 15_000,
    "large numbers": [2**63] * 7000,
    "fractions": [1.5] * 7000,
}
ARRAYS = {
    "none": [],
    "many of a byte": [np.zeros(1, np.uint8)] * 64,
    "many of many dimensions": [np.zeros((1,) * 16, np.uint8)] * 64,
    "many of large dimensions without a byte": [np.zeros((1 << 30, 0), np.uint8)] * 64,
}


def kept(keep, count=4):
    """Bytes that each of a few things takes in memory, on average; `keep(number)` returns what is to be kept."""
    keep(-1)  # what Python makes once, as for a first import
    gc.collect()
    tracemalloc.start()
    try:
        things = [keep(number) for number in range(count)]
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / len(things)
    finally:
        tracemalloc.stop()


KEYS = {
    "a number": (1 << 60,),
    "many numbers": tuple(range(1 << 60, (1 << 60) + 16)),
    "texts": ("k" * 500, "😀" * 500),
}


@pytest.mark.parametrize(
    ("key", "note", "arrays"),
    [  # what key, note and arrays take adds up, so each is met in all forms beside one form of the others
        *(("a number", note, "none") for note in NOTES),
        *(("a number", "none", each) for each in ARRAYS if ARRAYS[each]),
        *((key, "none", "none") for key in KEYS if key != "a number"),
        ("many numbers", "none", "many of many dimensions"),
    ],
)
def test_no_message_takes_more_memory_than_it_counts(key, note, arrays):
    key, blocks, mailbox = KEYS[key], [Block.of(array) for array in ARRAYS[arrays]], Mailbox(2)

    def arrive(number):
        header = unpack_header(pack_header((number, *key[1:]), blocks, NOTES[note]))
        incoming = IncomingMessage(header, SENDER, 10**6, number)
        mailbox.put(0, header.key, incoming)
        if incoming.remaining:
            incoming.buffer()

    counted = header_memory(key, NOTES[note], blocks) + sum(block.nbytes for block in blocks)
    assert kept(arrive) <= counted


def test_no_buffer_takes_more_memory_than_it_counts():
    buffers = Mailbox(2)

    def arrive(channel):
        buffers.put(0, (channel,), IncomingBuffer(0, SENDER, 10**6, channel))

    assert kept(arrive, 100) <= FRAME_BYTES


texts = st.text(st.sampled_from("a\0é€😀"))  # of each width in UTF-8; with all of Unicode the test took seconds
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | texts | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(texts | st.integers(-9, 9), inner),
    max_leaves=8,
)


@settings(max_examples=50)
@given(values)
def test_both_ends_count_the_same_for_a_note(note):
    received = msgpack.unpackb(msgpack.packb(note), strict_map_key=False)
    assert header_memory((1, "k"), note, ()) == header_memory((1, "k"), received, ())
