"""Unexpected messages: the receiver keeps a bounded amount of them, and receives may be posted in any order."""

import asyncio
import re
from contextlib import asynccontextmanager

import numpy as np
import pytest

from tests.conformance.worlds import kill, tcp_world
from tests.launching import ROOT
from transports import Block, Closed, PeerAborted, PeerLost, TransportError
from transports.stream.incoming import header_memory
from transports.tcp.flow_control import Credit, Offer, OfferTable
from transports.tcp.peer import TcpKind as Kind
from transports.wire.frames import encode_bare, encode_head

LIMIT, SIZE, COUNT = 1 << 20, 100_000, 40


@asynccontextmanager
async def world(world_size=2):
    ranks = await tcp_world(world_size, max_kept=LIMIT)
    try:
        yield ranks
    finally:
        await asyncio.gather(*(rank.close() for rank in ranks))


def run(scenario):
    async def in_time():
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(in_time())


def body(number):
    return np.full(SIZE, number, np.uint8)


def lying(end):
    """Bytes of whole unexpected messages that an end keeps."""
    return sum(arrival.item.nbytes - arrival.item.remaining for arrival in end._messages.arrivals(0))


async def test_unexpected_messages_beyond_the_limit_stay_at_their_sender():
    async with world() as (here, there):
        sends = [asyncio.create_task(here.send(1, ("k", n), body(n))) for n in range(COUNT)]
        while sum(send.done() for send in sends) < LIMIT // (SIZE + header_memory(("k", 0), None, [body(0)])):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert lying(there) <= LIMIT
        assert not all(send.done() for send in sends)
        for n in reversed(range(COUNT)):
            frame = await there.receive(0, ("k", n))
            assert bytes(frame.blocks[0].data) == bytes(body(n))
        await asyncio.gather(*sends)


async def test_messages_with_one_key_keep_their_order_on_both_sides_of_the_limit():
    async with world() as (here, there):
        sends = [asyncio.create_task(here.send(1, ("k",), body(n), note=n)) for n in range(COUNT)]
        for n in range(COUNT):
            into = np.empty(SIZE, np.uint8)
            frame = await there.receive(0 if n % 2 else None, ("k",), [into])
            assert frame.note == n and np.array_equal(into, body(n))
        await asyncio.gather(*sends)


async def test_bare_buffers_are_held_too_and_channels_do_not_wait_for_one_another():
    async with world() as (here, there):
        sends = [asyncio.create_task(here.send_buffer(1, n, memoryview(body(n)))) for n in range(COUNT)]
        for n in reversed(range(COUNT)):
            room = bytearray(SIZE)
            await there.receive_buffer(0, n, memoryview(room))
            assert room == bytes(body(n))
        await asyncio.gather(*sends)


async def test_a_message_beyond_the_limit_goes_into_the_memory_of_its_posted_receive():
    async with world() as (here, there):
        data, into = np.arange(LIMIT, dtype=np.int64), np.zeros(LIMIT, np.int64)
        sending = asyncio.create_task(here.send(1, ("large",), data))
        await here.send(1, ("small",))
        await there.receive(0, ("small",))
        assert not sending.done() and lying(there) == 0
        await there.receive(0, ("large",), [into])
        await sending
        assert np.array_equal(into, data)


async def test_an_offer_of_a_cancelled_sender_is_delivered_from_a_copy():
    async with world() as (here, there):
        data = np.ones(2 * LIMIT, np.uint8)
        sending = asyncio.create_task(here.send(1, ("large",), data))
        await here.send(1, ("small",))
        await there.receive(0, ("small",))
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        data[:] = 7
        assert (await there.receive(0, ("large",))).blocks[0].numpy().all()
        assert not (await asyncio.gather(here.close()))[0]


async def test_a_receive_cancelled_while_its_body_is_on_the_way_leaves_the_message():
    async with world() as (here, there):
        sending = asyncio.create_task(here.send(1, ("large",), np.ones(2 * LIMIT, np.uint8)))
        await here.send(1, ("small",))
        await there.receive(0, ("small",))
        receiving = asyncio.create_task(there.receive(0, ("large",)))
        await asyncio.sleep(0)
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        await sending
        assert (await there.receive(0, ("large",))).blocks[0].numpy().all()


async def test_close_delivers_what_was_held():
    here, there = await tcp_world(2, max_kept=LIMIT)
    sends = [asyncio.create_task(here.send(1, ("k", n), body(n))) for n in range(COUNT)]
    await asyncio.sleep(0)
    await here.close()
    await asyncio.gather(*sends)
    for n in reversed(range(COUNT)):
        assert bytes((await there.receive(0, ("k", n))).blocks[0].data) == bytes(body(n))
    await there.close()


async def test_close_delivers_no_more_than_its_limit_and_fails_the_other_sends(monkeypatch):
    monkeypatch.setattr("transports.tcp.peer.CLOSING_BYTES", 2 * LIMIT)

    here, there = await tcp_world(2, max_kept=LIMIT)
    sends = [asyncio.create_task(here.send(1, ("k", n), body(n))) for n in range(COUNT)]
    await asyncio.sleep(0)
    await here.close()
    ends = await asyncio.gather(*sends, return_exceptions=True)
    refused = [n for n, end in enumerate(ends) if isinstance(end, Closed)]
    assert refused and all(end is None for n, end in enumerate(ends) if n not in refused)
    for n in set(range(COUNT)) - set(refused):
        assert bytes((await there.receive(0, ("k", n))).blocks[0].data) == bytes(body(n))
    with pytest.raises(PeerLost):
        await there.receive(0, ("k", refused[0]))
    await there.close()


async def requested(here, there):
    """The send of an offer from rank 1 to rank 2, and its receive, which has requested the body."""
    sending = asyncio.create_task(here.send(2, ("large",), np.ones(32 * LIMIT, np.uint8)))
    await here.send(2, ("small",))
    await there.receive(1, ("small",))
    receiving = asyncio.create_task(there.receive(1, ("large",)))
    await asyncio.sleep(0)  # the request is written
    return sending, receiving


async def test_a_request_for_an_offer_that_an_abort_has_failed_breaks_no_connection():
    async with world(3) as (_, here, there):
        sending, receiving = await requested(here, there)
        here._peers.on_abort(0, "gave up")
        with pytest.raises(PeerAborted, match="gave up"):
            await sending
        await there.send(1, ("k",))
        while not receiving.done() and not [*here._messages.arrivals(2)]:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert not receiving.done()
        there._peers.on_abort(0, "gave up")
        with pytest.raises(PeerAborted, match="gave up"):
            await receiving


async def test_the_body_of_an_offer_that_was_requested_before_an_abort_is_dropped_and_breaks_no_connection():
    async with world(3) as (_, here, there):
        sending, receiving = await requested(here, there)
        there._peers.on_abort(0, "gave up")
        with pytest.raises(PeerAborted, match="gave up"):
            await receiving
        await sending


async def test_a_peer_that_delivers_more_unexpected_bytes_than_it_may_is_lost(monkeypatch):
    monkeypatch.setattr("transports.tcp.peer.CLOSING_BYTES", 2 * LIMIT)

    async with world() as (here, there):
        connection, part = here._peers[1].connection, Block.of(np.zeros(LIMIT, np.uint8))
        for number in range(3):
            connection.write([encode_head(Kind.RTS, ("k", number), [part], number=number)])
            connection.write([encode_bare(Kind.DATA, number, part.nbytes), part.data])
        with pytest.raises(PeerLost, match=rf"bytes: {3 * LIMIT}, limit: {2 * LIMIT}"):
            await there.receive(0, ("never",))
        assert lying(there) <= 2 * LIMIT


async def test_held_sends_and_their_receives_end_with_the_peer():
    async with world() as (here, there):
        large = np.ones(2 * LIMIT, np.uint8)
        held = asyncio.create_task(here.send(1, ("held",), large))
        other = asyncio.create_task(there.send(0, ("other",), large))
        await here.send(1, ("small",))
        await there.receive(0, ("small",))
        await there.send(0, ("small",))
        await here.receive(1, ("small",))
        kill(there)
        for work in (held, here.receive(1, ("other",))):
            with pytest.raises(PeerLost):
                await work
        await asyncio.wait([other])


def headers(end):
    """Bytes that the headers and bodies of messages at an end, without a posted receive, take at most."""
    lying = [arrival.item for arrival in end._messages.arrivals(0)]
    return sum(header_memory(item.header.key, item.header.note, item.header.layouts) for item in lying)


@pytest.fixture
def few_offers(monkeypatch):
    """Offers may take no more than messages do."""
    monkeypatch.setattr("transports.tcp.peer.OFFERS_BYTES", LIMIT)


async def test_a_sender_may_be_thousands_of_messages_ahead_in_a_large_world():
    async with world() as (here, there):
        ahead = [asyncio.create_task(here.send(1, ("k", n), note=n)) for n in range(4000)]
        assert [(await there.receive(0, ("k", n))).note for n in reversed(range(4000))] == [*reversed(range(4000))]
        await asyncio.gather(*ahead)


async def test_offers_beyond_their_limit_fail_at_the_sender(few_offers):
    async with world() as (here, there):
        sends = [asyncio.create_task(here.send(1, ("k", n), body(n), note=["x"] * 1000)) for n in range(COUNT)]
        done, pending = await asyncio.wait(sends, return_when=asyncio.FIRST_EXCEPTION)
        refused = [send for send in done if send.exception() is not None]
        with pytest.raises(TransportError, match=rf"headers: \d+ bytes, most: {LIMIT}\); await some first"):
            await refused[0]
        (quoted,) = re.findall(r'the send fails \("(.*?)"\)', (ROOT / "docs" / "transports.md").read_text())
        assert quoted in str(refused[0].exception())
        await here.send(1, ("last",))
        await there.receive(0, ("last",))
        assert LIMIT < headers(there) + lying(there) <= 2 * LIMIT
        for n in reversed(range(COUNT)):
            if sends[n] not in refused:
                assert bytes((await there.receive(0, ("k", n))).blocks[0].data) == bytes(body(n))
        await asyncio.gather(*pending)
        await asyncio.gather(there.receive(0, ("after",)), here.send(1, ("after",), body(0), note=["x"] * 1000))


async def test_an_offer_without_a_free_number_takes_no_share_of_the_offers(monkeypatch):
    monkeypatch.setattr("transports.tcp.flow_control.MAX_OFFERS", 1)

    table = OfferTable(Credit(20))
    number = table.put(Offer((), 10))
    for _ in range(2):
        with pytest.raises(TransportError, match=r"at once: 1, limit: 1"):
            table.put(Offer((), 10))
    table.pop(number)
    table.put(Offer((), 20))


async def test_a_peer_that_offers_more_than_it_may_is_lost(few_offers):
    async with world() as (here, there):
        for number in range(20):
            here._peers[1].connection.write([encode_head(Kind.RTS, ("k", number), note="x" * 60_000, number=number)])
        with pytest.raises(PeerLost, match=rf"more unexpected messages than are kept here .*limit: {LIMIT}"):
            await there.receive(0, ("never",))
        assert headers(there) <= LIMIT


async def test_offers_that_were_requested_make_room_for_others():
    async with world() as (here, there):
        large, note = np.ones(2 * LIMIT, np.uint8), "x" * 60_000
        for n in range(3 * LIMIT // len(note)):
            await asyncio.gather(here.send(1, ("k", n), large, note=note), there.receive(0, ("k", n)))
