"""What each way to end a connection does to the frames on it: the table of `transports.stream.connection`."""

import asyncio
import socket

import pytest

from transports.stream.connection import ConnectionOwner, Ending, FrameConnection

LONG = 8 << 20  # more than the kernel takes at once
LAST = b"goodbye"


class Reader:
    """Counts the bytes that arrive, and keeps the error with which it is failed."""

    direct = False

    def __init__(self):
        self.received, self.error = 0, None

    def buffer(self):
        return memoryview(bytearray(1 << 20))

    def advance(self, count):
        self.received += count

    def fail(self, error):
        self.error = error


class Owner(ConnectionOwner):
    def __init__(self):
        self.reasons, self.broken = [], asyncio.Event()

    def on_broken(self, reason):
        self.reasons.append(reason)
        self.broken.set()


async def read_all(sock):
    """The number of bytes until the other end shuts down or closes."""
    loop, count = asyncio.get_running_loop(), 0
    while piece := await loop.sock_recv(sock, 1 << 20):
        count += len(piece)
    return count


@pytest.mark.parametrize(
    ("ending", "started_is_sent", "queued_is_sent", "stays_open"),
    [
        (Ending.STOP_RECEIVING, True, True, True),
        (Ending.CLOSE, True, True, False),
        (Ending.ABORT, True, False, False),
        (Ending.DROP, False, False, False),
    ],
)
async def test_an_ending_sends_and_fails_frames_as_the_table_says(ending, started_is_sent, queued_is_sent, stays_open):
    near, far = socket.socketpair()
    for sock in (near, far):
        sock.setblocking(False)
    reader, owner, error = Reader(), Owner(), OSError("the reason")
    connection = FrameConnection(near, reader, owner)
    started, queued = connection.write([bytes(LONG)]), connection.write([bytes(100)])
    assert started.started and not queued.started

    connection.end(ending, error, [LAST] if ending in (Ending.CLOSE, Ending.ABORT) else ())
    assert reader.error is error
    expected = LONG * started_is_sent + 100 * queued_is_sent + len(LAST) * (not stays_open and started_is_sent)
    if stays_open:
        connection.write([LAST])
        expected, received = expected + len(LAST), 0
        while received < expected:
            received += len(await asyncio.get_running_loop().sock_recv(far, 1 << 20))
        assert connection.write([LAST]) is None and await asyncio.get_running_loop().sock_recv(far, 100) == LAST
        connection.end(Ending.DROP, error)
    elif started_is_sent:
        received = await read_all(far)
        assert received == expected
        far.close()
    for frame, sent in ((started, started_is_sent), (queued, queued_is_sent)):
        assert (await asyncio.gather(frame.written, return_exceptions=True))[0] is (None if sent else error)
    await connection.wait_closed(1.0)
    far.close()
    assert near.fileno() == -1 and not owner.reasons


async def test_a_connection_that_breaks_without_a_last_frame_notifies_its_owner_once():
    near, far = socket.socketpair()
    near.setblocking(False)
    owner = Owner()
    connection = FrameConnection(near, Reader(), owner)
    far.close()
    await owner.broken.wait()
    connection.end(Ending.DROP, OSError(owner.reasons[0]))
    assert owner.reasons == ["the connection was closed without a goodbye"]
