"""A body that is being received: in memory of its own, or in the receiver's from `attach` to `detach`."""

import asyncio

import pytest

from transports import PeerLost
from transports.stream.incoming import IncomingBuffer, WrongSize, pour

DATA = memoryview(b"abcd")


async def received(body):
    """Wait for the last byte, or the error."""
    waiter = asyncio.get_running_loop().create_future()
    body.notify(waiter)
    await waiter


async def test_a_body_is_kept_in_its_own_memory_until_memory_is_attached():
    body, memory = IncomingBuffer(4), bytearray(4)
    pour(DATA, body)
    body.attach_view(memoryview(memory))
    await received(body)
    assert memory == b"abcd"


async def test_bytes_come_directly_into_attached_memory():
    body, memory = IncomingBuffer(4), bytearray(4)
    pour(DATA[:1], body)
    body.attach_view(memoryview(memory))
    pour(DATA[1:2], body)
    assert memory == b"ab\0\0" and body.missing == 2
    pour(DATA[2:], body)
    await received(body)
    assert memory == b"abcd"


async def test_detached_memory_is_not_written_again_and_the_next_memory_gets_all():
    body, memory, other = IncomingBuffer(4), bytearray(4), bytearray(4)
    views = body.attach_view(memoryview(memory))
    pour(DATA[:2], body)
    body.detach(views)
    memory[:] = b"mine"
    pour(DATA[2:], body)
    body.attach_view(memoryview(other))
    body.detach(views)  # the body has left this memory already
    await received(body)
    assert (memory, other) == (b"mine", b"abcd")


async def test_memory_of_another_size_is_refused_and_the_buffer_stays():
    body, memory = IncomingBuffer(4), bytearray(4)
    pour(DATA, body)
    for size in (3, 5):
        with pytest.raises(WrongSize, match=rf"expected: {size} bytes, received: 4 bytes"):
            body.attach_view(memoryview(bytearray(size)))
    body.attach_view(memoryview(memory))
    assert memory == b"abcd"


def test_on_posted_is_called_once():
    posted = []
    body = IncomingBuffer(4, lambda: posted.append(1))
    body.post()
    body.post()
    assert posted == [1]


async def test_a_failed_body_raises_its_error_and_a_complete_one_cannot_fail():
    half, whole, lost = IncomingBuffer(4), IncomingBuffer(4), PeerLost(1, "gone")
    pour(DATA[:2], half)
    pour(DATA, whole)
    for body in (half, whole):
        body.fail(lost)
    with pytest.raises(PeerLost):
        await received(half)
    await received(whole)
