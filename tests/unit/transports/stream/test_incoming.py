"""A body that is being received: in memory of its own, or in the receiver's from `attach` to `detach`."""

from types import SimpleNamespace

import pytest

from transports import PeerLost
from transports.stream.incoming import IncomingBuffer, ReceiveMemory, WrongSize
from transports.stream.reader import copy_into_body

DATA = memoryview(b"abcd")


async def test_a_body_is_kept_in_its_own_memory_until_memory_is_attached():
    body, memory = IncomingBuffer(4), bytearray(4)
    copy_into_body(DATA, body)
    body.attach(memoryview(memory))
    await body.wait_complete()
    assert memory == b"abcd"


async def test_bytes_come_directly_into_attached_memory():
    body, memory = IncomingBuffer(4), bytearray(4)
    copy_into_body(DATA[:1], body)
    body.attach(memoryview(memory))
    copy_into_body(DATA[1:2], body)
    assert memory == b"ab\0\0" and body.remaining == 2
    copy_into_body(DATA[2:], body)
    await body.wait_complete()
    assert memory == b"abcd"


async def test_detached_memory_is_not_written_again_and_the_next_memory_gets_all():
    body, memory, other = IncomingBuffer(4), bytearray(4), bytearray(4)
    views = body.attach(memoryview(memory))
    copy_into_body(DATA[:2], body)
    body.detach(views)
    memory[:] = b"mine"
    copy_into_body(DATA[2:], body)
    body.attach(memoryview(other))
    body.detach(views)  # the body has left this memory already
    await body.wait_complete()
    assert (memory, other) == (b"mine", b"abcd")


async def test_memory_of_another_size_is_refused_and_the_buffer_stays():
    body, memory = IncomingBuffer(4), bytearray(4)
    copy_into_body(DATA, body)
    for size in (3, 5):
        with pytest.raises(WrongSize, match=rf"expected: {size} bytes, received: 4 bytes"):
            body.attach(memoryview(bytearray(size)))
    body.attach(memoryview(memory))
    assert memory == b"abcd"


def test_the_sender_learns_of_the_first_receive_only():
    posted = []
    body = IncomingBuffer(4, SimpleNamespace(on_receive_posted=posted.append))
    for _ in range(2):
        ReceiveMemory(memoryview(bytearray(4))).accept(body)
    assert posted == [body]


async def test_a_failed_body_raises_its_error_and_a_complete_one_cannot_fail():
    half, whole, lost = IncomingBuffer(4), IncomingBuffer(4), PeerLost(1, "gone")
    copy_into_body(DATA[:2], half)
    copy_into_body(DATA, whole)
    for body in (half, whole):
        body.fail(lost)
    with pytest.raises(PeerLost):
        await half.wait_complete()
    await whole.wait_complete()
