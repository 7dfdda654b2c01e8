"""Clauses on bare buffers: the collectives' inner loop."""

import asyncio

import numpy as np
import pytest

from tests.conformance.neighbours import LARGE, filled, left_of, right_of, sending, wait_for_all
from transports import SizeMismatch, WireError


def _bytes(array):
    return memoryview(array).cast("B") if array.size else memoryview(bytearray())


async def buffers_fill_the_receivers_memory(end):
    for items in (0, 1, 256, LARGE):
        mine = np.empty(items, np.float32)
        await asyncio.gather(
            end.send_buffer(right_of(end), 7, _bytes(filled(end.rank, items))),
            end.receive_buffer(left_of(end), 7, _bytes(mine)),
        )
        assert mine.tobytes() == filled(left_of(end), items).tobytes()


async def buffers_come_in_the_order_sent(end):
    sizes = [1, LARGE, 3, 0, LARGE, 2] * 5
    sends = [end.send_buffer(right_of(end), 3, _bytes(filled(end.rank, size, n))) for n, size in enumerate(sizes)]
    async with sending(*sends):
        for n, size in enumerate(sizes):
            mine = np.empty(size, np.float32)
            await end.receive_buffer(left_of(end), 3, _bytes(mine))
            assert mine.tobytes() == filled(left_of(end), size, n).tobytes()


async def waiting_receives_are_served_in_their_order(end):
    mine = [np.empty(LARGE, np.float32) for _ in range(4)]
    receives = [asyncio.ensure_future(end.receive_buffer(left_of(end), 5, _bytes(array))) for array in mine]
    await wait_for_all(end, "posted")
    async with sending(*(end.send_buffer(right_of(end), 5, _bytes(filled(end.rank, LARGE, n))) for n in range(4))):
        await asyncio.gather(*receives)
    assert all(array.tobytes() == filled(left_of(end), LARGE, n).tobytes() for n, array in enumerate(mine))


async def channels_do_not_wait_for_one_another(end):
    channels = [0, 1, 16383]
    sends = [end.send_buffer(right_of(end), c, _bytes(filled(end.rank, LARGE, c))) for c in channels]
    async with sending(*sends):
        for channel in reversed(channels):
            mine = np.empty(LARGE, np.float32)
            await end.receive_buffer(left_of(end), channel, _bytes(mine))
            assert mine.tobytes() == filled(left_of(end), LARGE, channel).tobytes()


async def buffers_and_messages_do_not_mix(end):
    mine = np.empty(LARGE, np.float32)
    sends = end.send_buffer(right_of(end), 1, _bytes(filled(end.rank, LARGE))), end.send(right_of(end), (1,), b"abc")
    async with sending(*sends):
        message = await end.receive(left_of(end), (1,))
        await end.receive_buffer(left_of(end), 1, _bytes(mine))
    assert bytes(message.blocks[0].data) == b"abc"
    assert mine.tobytes() == filled(left_of(end), LARGE).tobytes()


async def all_pairs_exchange_at_once(end):
    async def exchange(peer, channel):
        mine = np.empty(1000 + channel, np.float32)
        await asyncio.gather(
            end.send_buffer(peer, channel, _bytes(filled(end.rank, 1000 + channel, peer))),
            end.receive_buffer(peer, channel, _bytes(mine)),
        )
        assert mine.tobytes() == filled(peer, 1000 + channel, end.rank).tobytes()

    await asyncio.gather(*(exchange(peer, channel) for peer in range(end.world_size) for channel in range(10)))


async def _refused(end, channel, sent, room):
    receive = asyncio.ensure_future(end.receive_buffer(left_of(end), channel, memoryview(bytearray(room))))
    await wait_for_all(end, channel)
    async with sending(end.send_buffer(right_of(end), channel, memoryview(bytes(range(200)) * sent)[:sent])):
        with pytest.raises(SizeMismatch, match=rf"\b{room}\b.*({sent}|more)") as caught:
            await receive
    return bytes(caught.value.prefix)


async def a_buffer_of_another_size_is_refused_with_both_numbers_and_tells_its_beginning(end):
    for channel, (sent, room) in enumerate([(100, 60), (60, 100), (0, 8)]):
        assert await _refused(end, channel, sent, room) == bytes(range(min(sent, room)))
    await wait_for_all(end, "still works")


async def a_much_larger_buffer_is_refused_with_both_numbers(end):
    await _refused(end, 1, 4 * LARGE, 4)
    await wait_for_all(end, "still works")


async def a_buffer_of_256_mib_arrives_complete(end):
    big = 256 << 20
    if end.rank == 0:
        await end.send_buffer(1, 9, _bytes(np.arange(big // 8)))
    elif end.rank == 1:
        mine = np.empty(big // 8, np.int64)
        await end.receive_buffer(0, 9, _bytes(mine))
        assert (mine == np.arange(big // 8)).all()


async def buffers_are_counted_at_both_ends(end):
    mine = bytearray(1000)
    async with sending(end.send_buffer(right_of(end), 2, memoryview(bytes(1000)))):
        await end.receive_buffer(left_of(end), 2, memoryview(mine))
    traffic = end.traffic
    assert (traffic.messages_sent, traffic.bytes_sent) == (1, 1000)
    assert (traffic.messages_received, traffic.bytes_received) == (1, 1000)
    assert traffic.bytes_to == {right_of(end): 1000}


async def buffers_of_objects_are_refused_both_ways(end):
    pointers = memoryview(np.array([None, "x"], object))
    with pytest.raises(WireError, match="plain numbers"):
        await end.send_buffer(right_of(end), 4, pointers)
    with pytest.raises(WireError, match="plain numbers"):
        await end.receive_buffer(left_of(end), 4, pointers)
    await wait_for_all(end, "still works")


async def read_only_memory_is_refused_and_the_buffer_stays_available(end):
    with pytest.raises(ValueError, match="read-only"):  # no buffer is sent yet
        await end.receive_buffer(left_of(end), 5, memoryview(bytes(4)))
    async with sending(end.send_buffer(right_of(end), 5, memoryview(b"abcd"))):
        await wait_for_all(end, "sent")
        with pytest.raises(ValueError, match="read-only"):
            await end.receive_buffer(left_of(end), 5, memoryview(bytes(4)))
        mine = bytearray(4)
        await end.receive_buffer(left_of(end), 5, memoryview(mine))
    assert mine == b"abcd"


async def a_channel_or_rank_that_is_not_there_is_named(end):
    for channel in (-1, 16384):
        with pytest.raises(ValueError, match=rf"{channel}.*16384"):
            await end.send_buffer(right_of(end), channel, memoryview(b""))
        with pytest.raises(ValueError, match=rf"{channel}.*16384"):
            await end.receive_buffer(left_of(end), channel, memoryview(b""))
    with pytest.raises(ValueError, match=rf"{end.world_size}"):
        await end.receive_buffer(end.world_size, 0, memoryview(b""))
