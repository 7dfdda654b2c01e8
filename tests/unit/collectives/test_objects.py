"""Objects between all ranks go along a tree: few messages a rank, few one after another, and the order of ranks."""

import msgpack
import pytest

from collectives.objects import broadcast_object, first_value, gather_objects
from tests.unit.collectives.exchanges import check_cost, on_all
from transports import WireError

SIZES = [1, 2, 3, 5, 8, 13, 300]


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_what_the_source_holds(size):
    for source in {0, size // 2, size - 1}:

        async def work(end, source=source):
            value = {"from": end.rank, 1: [2.5, b"x"]} if end.rank == source else None
            return await broadcast_object(end, "it", value, source)

        got, ends = on_all(size, work)
        assert got == [{"from": source, 1: [2.5, b"x"]}] * size
        check_cost(ends, 1)


@pytest.mark.parametrize("size", SIZES)
def test_the_target_gets_what_every_rank_holds_in_the_order_of_ranks(size):
    for target in {0, size // 2, size - 1}:

        async def work(end, target=target):
            return await gather_objects(end, "it", [end.rank, "of", None], target)

        got, ends = on_all(size, work)
        assert got.pop(target) == [[rank, "of", None] for rank in range(size)]
        assert got == [[]] * (size - 1)
        check_cost(ends, 1)


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_the_first_object_that_a_rank_holds(size):
    for holders in ([], [0], [size - 1], [size // 3, size // 2]):

        async def work(end, holders=holders):
            return await first_value(end, "it", f"held by {end.rank}" if end.rank in holders else None)

        got, ends = on_all(size, work)
        first = min(holders, default=None)
        assert got == [None if first is None else (first, f"held by {first}")] * size
        check_cost(ends, 2)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("verb", [broadcast_object, gather_objects, first_value])
def test_the_rank_that_gives_an_object_gets_back_the_types_that_the_others_get(verb, size):
    """msgpack has one type of sequence, which it unpacks as a list."""
    sent = {1: (2.5, (b"x", "y"))}
    received = {1: [2.5, [b"x", "y"]]}
    expected = {broadcast_object: received, gather_objects: [received] * size, first_value: (0, received)}[verb]
    assert on_all(size, lambda end: verb(end, "it", sent))[0][0] == expected


def test_what_is_held_is_packed_once_on_its_way_up_and_once_on_its_way_down(monkeypatch):
    packed, packb = [], msgpack.packb
    monkeypatch.setattr("collectives.objects.msgpack.packb", lambda value: packed.append(value) or packb(value))
    got, _ = on_all(2, lambda end: first_value(end, "it", "a fact" if end.rank else None))
    assert got == [(1, "a fact")] * 2 and packed == [[1, "a fact"]] * 2


MALFORMED = {
    "not msgpack": [b"\xc1"],
    "cut short": [b"\x92\x01"],
    "a map with a list for a key": [b"\x81\x91\x01\x01"],
    "two blocks": [b"\xc0", b"\xc0"],
    "no block": [],
}
OTHER = {"a number": [msgpack.packb(7)], "too many": [msgpack.packb([b"\xc0"] * 3)], "a text": [msgpack.packb("ab")]}


CASES = [(verb, sent) for verb in (broadcast_object, gather_objects, first_value) for sent in MALFORMED]
CASES += [(verb, sent) for verb in (gather_objects, first_value) for sent in OTHER]  # broadcast gives any object


@pytest.mark.parametrize(("verb", "sent"), CASES)
def test_what_does_not_unpack_is_refused_with_the_rank_that_sent_it(verb, sent):
    blocks = {**MALFORMED, **OTHER}[sent]

    async def work(end):
        sender = 0 if verb is broadcast_object else 1
        if end.rank == sender:
            await end.send(1 - sender, ("agree", "it"), *blocks)
        else:
            with pytest.raises(WireError, match=f"what rank {sender} sent for 'it' does not unpack .* one release"):
                await verb(end, "it", None)

    assert on_all(2, work)[0] == [None, None]


@pytest.mark.parametrize("sent", [7, [1, "a", "b"], ["1", "a"]], ids=str)
def test_a_malformed_first_object_from_rank_0_is_refused(sent):
    async def work(end):
        if end.rank == 0:
            await end.receive(1, ("agree", "it"))
            return await broadcast_object(end, "it", sent)
        with pytest.raises(WireError, match=r"what rank 0 sent for 'it' does not unpack \(no rank with its object"):
            await first_value(end, "it", None)

    assert on_all(2, work)[0] == [sent, None]


def test_what_one_rank_held_that_does_not_unpack_is_refused_at_the_target_with_its_number():
    async def work(end):
        if end.rank == 0:
            return await gather_objects(end, "it", None, target=2)
        if end.rank == 1:
            return await end.send(2, ("agree", "it"), msgpack.packb([b"\xc1"]))
        with pytest.raises(WireError, match=r"what rank 1 sent for 'it' does not unpack \(FormatError"):
            await gather_objects(end, "it", None, target=2)

    assert on_all(3, work)[0] == [[], None, None]
