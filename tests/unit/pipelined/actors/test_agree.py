"""Objects between all ranks go along a tree: few messages a rank, few one after another, and the order of ranks."""

import asyncio
from math import ceil, log2

import msgpack
import pytest

from pipelined.actors.agree import AgreedError, agree, broadcast, first_value, gather, require_equal
from pipelined.errors import UsageError
from transports import WireError
from transports.local import world

SIZES = [1, 2, 3, 5, 8, 13, 300]


class Counting:
    """An end that counts how many messages, one after another, led to what it knows."""

    def __init__(self, end, on_the_way):
        self._end, self._on_the_way, self.hops = end, on_the_way, 0

    def __getattr__(self, name):
        return getattr(self._end, name)

    async def send(self, peer, key, *arrays):
        self._on_the_way[self.rank, peer, key] = self.hops + 1
        await self._end.send(peer, key, *arrays)

    async def receive(self, peer, key):
        frame = await self._end.receive(peer, key)
        self.hops = max(self.hops, self._on_the_way.pop((peer, self.rank, key)))
        return frame


def on_all(size, work):
    """What work(end) gives or raises on every rank, and the ends."""
    on_the_way = {}
    ends = [Counting(end, on_the_way) for end in world(size)]

    async def main():
        return await asyncio.wait_for(asyncio.gather(*map(work, ends), return_exceptions=True), 30)

    return asyncio.run(main()), ends


def check_cost(ends, rounds):
    """No more messages one after another than `rounds` times the levels of a tree, and no more from one rank."""
    levels = ceil(log2(len(ends)))
    assert max(end.hops for end in ends) <= rounds * levels
    assert max(end.traffic.messages_sent for end in ends) <= levels + (rounds - 1)
    assert sum(end.traffic.messages_sent for end in ends) == rounds * (len(ends) - 1)


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_gets_what_the_source_holds(size):
    for source in {0, size // 2, size - 1}:

        async def work(end, source=source):
            value = {"from": end.rank, 1: [2.5, b"x"]} if end.rank == source else None
            return await broadcast(end, "it", value, source)

        got, ends = on_all(size, work)
        assert got == [{"from": source, 1: [2.5, b"x"]}] * size
        check_cost(ends, 1)


@pytest.mark.parametrize("size", SIZES)
def test_the_target_gets_what_every_rank_holds_in_the_order_of_ranks(size):
    for target in {0, size // 2, size - 1}:

        async def work(end, target=target):
            return await gather(end, "it", [end.rank, "of", None], target)

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
@pytest.mark.parametrize("verb", [broadcast, gather, first_value])
def test_the_rank_that_gives_an_object_gets_back_the_types_that_the_others_get(verb, size):
    """msgpack has one type of sequence, which it unpacks as a list."""
    given = {1: (2.5, (b"x", "y"))}
    received = {1: [2.5, [b"x", "y"]]}
    expected = {broadcast: received, gather: [received] * size, first_value: (0, received)}[verb]
    assert on_all(size, lambda end: verb(end, "it", given))[0][0] == expected


def test_what_is_held_is_packed_once_on_its_way_up_and_once_on_its_way_down(monkeypatch):
    packed, packb = [], msgpack.packb
    monkeypatch.setattr("pipelined.actors.agree.msgpack.packb", lambda value: packed.append(value) or packb(value))
    got, _ = on_all(2, lambda end: first_value(end, "it", "a fact" if end.rank else None))
    assert got == [(1, "a fact")] * 2 and packed == [[1, "a fact"]] * 2


@pytest.mark.parametrize("failing", [(0,), (117, 250), (299,)])
def test_a_mistake_on_some_ranks_is_reported_on_all_with_the_rank_in_twice_log2_messages(failing):
    async def work(end):
        async def read():
            if end.rank in failing:
                raise UsageError(f"cannot read the file of rank {end.rank}")
            return end.rank

        return await agree(end, "read", read())

    got, ends = on_all(300, work)
    first = min(failing)
    said = f"rank {first}: cannot" if first else "cannot"
    assert {type(error) for error in got} == {AgreedError}
    assert {str(error) for error in got} == {f"{said} read the file of rank {first}"}
    check_cost(ends, 2)


def test_where_no_rank_makes_a_mistake_each_has_its_own_result():
    async def work(end):
        return await agree(end, "count", asyncio.sleep(0, end.rank))

    got, ends = on_all(300, work)
    assert got == list(range(300))
    check_cost(ends, 2)


MALFORMED = {
    "not msgpack": [b"\xc1"],
    "cut short": [b"\x92\x01"],
    "a map with a list for a key": [b"\x81\x91\x01\x01"],
    "two blocks": [b"\xc0", b"\xc0"],
    "no block": [],
}
OTHER = {"a number": [msgpack.packb(7)], "too many": [msgpack.packb([b"\xc0"] * 3)], "a text": [msgpack.packb("ab")]}


CASES = [(verb, sent) for verb in (broadcast, gather, first_value) for sent in MALFORMED]
CASES += [(verb, sent) for verb in (gather, first_value) for sent in OTHER]  # broadcast gives any object


@pytest.mark.parametrize(("verb", "sent"), CASES)
def test_what_does_not_unpack_is_refused_with_the_rank_that_sent_it(verb, sent):
    blocks = {**MALFORMED, **OTHER}[sent]

    async def work(end):
        sender = 0 if verb is broadcast else 1
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
            return await broadcast(end, "it", sent)
        with pytest.raises(WireError, match=r"what rank 0 sent for 'it' does not unpack \(no rank with its object"):
            await first_value(end, "it", None)

    assert on_all(2, work)[0] == [sent, None]


def test_what_one_rank_held_that_does_not_unpack_is_refused_at_the_target_with_its_number():
    async def work(end):
        if end.rank == 0:
            return await gather(end, "it", None, target=2)
        if end.rank == 1:
            return await end.send(2, ("agree", "it"), msgpack.packb([b"\xc1"]))
        with pytest.raises(WireError, match=r"what rank 1 sent for 'it' does not unpack \(FormatError"):
            await gather(end, "it", None, target=2)

    assert on_all(3, work)[0] == [[], None, None]


def test_settings_that_differ_are_named_on_every_rank():
    async def work(end):
        settings = {"seed": str(end.rank // 3), "steps": "9"}
        await require_equal(end, "arguments", settings, "start all ranks alike")

    ended, _ = on_all(5, work)
    fact = "rank 3: other arguments than those of rank 0 (seed: 1 here, 0 on rank 0); start all ranks alike"
    assert [(type(each), str(each)) for each in ended] == [(AgreedError, fact)] * 5


def test_equal_settings_are_no_news():
    async def work(end):
        await require_equal(end, "arguments", {"seed": "1"}, "start all ranks alike")

    ended, ends = on_all(5, work)
    assert ended == [None] * 5
    assert sum(end.traffic.messages_sent for end in ends) == 3 * 4
