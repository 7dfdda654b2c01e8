"""Bare buffers and the receives they meet: order, sizes, cancellation, and memory that is let go of."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transports import PeerLost
from transports.tcp.channels import Channel, ChannelTable


def fill(buffer, data):
    """Let a buffer's bytes come in two parts."""
    half = len(data) // 2
    for part in (data[:half], data[half:]):
        if part:
            buffer.buffer()[: len(part)] = part
            buffer.advance(len(part))


async def started(work):
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    return task


async def test_a_buffer_is_kept_in_its_own_memory_until_a_receive_is_posted():
    channel, room = Channel(), bytearray(4)
    fill(channel.begin(4), b"abcd")
    await channel.receive(memoryview(room), None)
    assert room == b"abcd"


async def test_a_receive_that_waits_lends_its_memory_at_once():
    channel, room = Channel(), bytearray(4)
    task = await started(channel.receive(memoryview(room), None))
    buffer = channel.begin(4)
    buffer.buffer()[:2] = b"ab"
    buffer.advance(2)
    assert room == b"ab\0\0" and not task.done()
    buffer.buffer()[:2] = b"cd"
    buffer.advance(2)
    await task
    assert room == b"abcd"


async def test_a_cancelled_receive_lets_go_of_its_memory_and_the_next_one_gets_all():
    channel, room, other = Channel(), bytearray(4), bytearray(4)
    task = await started(channel.receive(memoryview(room), None))
    buffer = channel.begin(4)
    buffer.buffer()[:2] = b"ab"
    buffer.advance(2)
    task.cancel()
    await asyncio.wait([task])
    room[:] = b"mine"
    buffer.buffer()[:2] = b"cd"
    buffer.advance(2)
    await channel.receive(memoryview(other), None)
    assert (room, other) == (b"mine", b"abcd")


async def test_a_buffer_of_another_size_names_both_and_stays():
    channel, room = Channel(), bytearray(4)
    waiting = await started(channel.receive(memoryview(bytearray(3)), None))
    fill(channel.begin(4), b"abcd")
    for receive in (waiting, channel.receive(memoryview(bytearray(5)), None)):
        with pytest.raises(ValueError, match=r"expected: [35] bytes, came: 4 bytes"):
            await receive
    await channel.receive(memoryview(room), None)
    assert room == b"abcd"


async def test_on_posted_is_called_once():
    channel, asked = Channel(), []
    channel.begin(0, lambda: asked.append(1))
    assert not asked
    task = await started(channel.receive(memoryview(b""), None))
    await asyncio.wait([task])
    assert asked == [1]


async def test_what_came_whole_outlives_its_peer_and_what_did_not_fails_with_it():
    buffers, lost, room = ChannelTable(), PeerLost(1, "gone"), bytearray(4)
    channel = buffers.find(1, 0)
    fill(channel.begin(4), b"abcd")
    half = channel.begin(4)
    half.fail(lost)
    elsewhere = await started(buffers.find(2, 0).receive(memoryview(bytearray(1)), None))
    waiting = await started(buffers.find(1, 1).receive(memoryview(bytearray(1)), None))
    buffers.fail_peer(1, lost)
    await channel.receive(memoryview(room), lost)
    assert room == b"abcd" and not elsewhere.done()
    for receive in (waiting, channel.receive(memoryview(room), lost), channel.receive(memoryview(room), lost)):
        with pytest.raises(PeerLost):
            await receive
    buffers.fail_all(lost)
    with pytest.raises(PeerLost):
        await elsewhere


@given(st.lists(st.sampled_from(["arrive", "receive", "cancel"]), max_size=40))
def test_whatever_is_cancelled_when_every_buffer_is_received_once_and_in_order(steps):
    async def main():
        channel, arrived, waiting, received = Channel(), 0, [], []

        async def receive():
            room = bytearray(1)
            await channel.receive(memoryview(room), None)
            received.append(room[0])

        for step in steps:
            if step == "arrive":
                fill(channel.begin(1), bytes([arrived]))
                arrived += 1
            elif step == "receive":
                waiting.append(await started(receive()))
            elif waiting:
                waiting.pop(0).cancel()
                await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        while len(received) < arrived:
            await receive()
        assert sorted(received) == list(range(arrived))
        assert "cancel" in steps or received == list(range(arrived))

    asyncio.run(main())
