"""Rules of tcp alone, beyond the clauses of every transport: the memory of messages, and the end of a rank."""

import asyncio
import gc
import socket
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest

from tests.conformance.worlds import kill, tcp_world
from transports import Closed, PeerAborted, PeerLost, RendezvousError, new_event_loop
from transports.stream.sockets import make_nonblocking
from transports.tcp import transport as tcp

LARGE = 32 << 20
SOON = 5.0  # it takes milliseconds on an idle machine; nothing in here waits for a probe of 15 s


@asynccontextmanager
async def world(world_size, key=b""):
    ranks = await tcp_world(world_size, key)
    try:
        yield ranks
    finally:
        await asyncio.gather(*(rank.close() for rank in ranks))


def run(scenario, loop_factory=None):
    async def in_time():
        async with asyncio.timeout(30):
            return await scenario

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(in_time())


def numbers(nbytes):
    return np.arange(nbytes // 8, dtype=np.int64)


@pytest.mark.parametrize("loop_factory", [None, new_event_loop])
def test_a_large_message_is_read_straight_into_the_array_of_its_posted_receive(loop_factory):
    async def scenario():
        async with world(2) as (here, there):
            data, into = numbers(LARGE), np.zeros(LARGE // 8, np.int64)
            receiving = asyncio.create_task(there.receive(0, ("large",), [into]))
            await asyncio.sleep(0)
            await here.send(1, ("large",), data)
            frame = await receiving
            assert frame.blocks[0].numpy().ctypes.data == into.ctypes.data
            assert np.array_equal(into, data)

    run(scenario(), loop_factory)


async def test_two_ranks_that_both_send_before_they_receive_do_not_wait_for_each_other():
    async with world(2) as ranks:
        data = numbers(LARGE)
        await asyncio.gather(*(rank.send(1 - rank.rank, ("large",), data) for rank in ranks))
        frames = [await rank.receive(1 - rank.rank, ("large",)) for rank in ranks]
        assert all(np.array_equal(frame.blocks[0].numpy(), data) for frame in frames)


async def test_a_send_cancelled_inside_a_frame_is_delivered_whole_from_memory_of_its_own():
    async with world(2) as (here, there):
        data = numbers(LARGE)
        sending = asyncio.create_task(here.send(1, ("large",), data))
        await asyncio.sleep(0)  # the kernel has taken what it takes at once
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        data[:] = -1
        await here.send(1, ("small",), b"after")
        assert np.array_equal((await there.receive(0, ("large",))).blocks[0].numpy(), numbers(LARGE))
        assert bytes((await there.receive(0, ("small",))).blocks[0].data) == b"after"


async def test_a_send_cancelled_before_its_frame_begins_is_not_delivered():
    async with world(2) as (here, there):
        first = asyncio.create_task(here.send(1, ("first",), numbers(LARGE)))
        second = asyncio.create_task(here.send(1, ("second",), b"never"))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        receiving = asyncio.create_task(there.receive(0, ("second",)))
        await first
        await here.send(1, ("third",))
        await there.receive(0, ("third",))
        assert not receiving.done()
        await here.send(1, ("second",), b"again")
        assert bytes((await receiving).blocks[0].data) == b"again"


async def test_a_receive_cancelled_inside_a_message_gets_its_array_back_and_the_next_one_gets_the_message():
    async with world(2) as (here, there):
        data, into = numbers(LARGE), np.zeros(LARGE // 8, np.int64)
        receiving = asyncio.create_task(there.receive(0, ("large",), [into]))
        sending = asyncio.create_task(here.send(1, ("large",), data))
        while not into[1]:  # noqa: ASYNC110 (there is nothing to wait on)
            await asyncio.sleep(0)
        assert not into[-1]
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
        into[:] = -7
        other = np.zeros_like(into)
        frame = await there.receive(0, ("large",), [other])
        await sending
        assert np.all(into == -7)
        assert np.array_equal(other, data) and frame.blocks[0].numpy().ctypes.data == other.ctypes.data


async def test_a_rank_that_dies_inside_a_message_fails_the_receive_and_leaves_the_array_alone():
    async with world(2) as (dying, here):
        into = np.zeros(LARGE // 8, np.int64)
        receiving = asyncio.create_task(here.receive(0, ("large",), [into]))
        sending = asyncio.create_task(dying.send(1, ("large",), numbers(LARGE)))
        while not into[1]:  # noqa: ASYNC110 (there is nothing to wait on)
            await asyncio.sleep(0)
        kill(dying)
        with pytest.raises(PeerLost, match="lost rank 0"):
            await receiving
        with pytest.raises(Closed):
            await sending


async def test_complete_messages_of_a_dead_rank_are_received_and_its_last_key_is_known():
    async with world(2) as (dying, here):
        assert here.last_key(0) is None
        await dying.send(1, ("microbatch", 6), b"six")
        await dying.send(1, ("microbatch", 7), b"seven")
        kill(dying)
        with pytest.raises(PeerLost):
            await here.receive(0, ("microbatch", 8))
        assert here.last_key(0) == ("microbatch", 7)
        assert bytes((await here.receive(0, ("microbatch", 6))).blocks[0].data) == b"six"


async def test_an_abort_reaches_every_rank_with_its_reason_past_a_large_message_under_way():
    async with world(3) as (failing, here, other):
        sending = asyncio.create_task(failing.send(1, ("large",), numbers(LARGE)))
        queued = asyncio.create_task(failing.send(1, ("queued",)))
        pending = [asyncio.create_task(rank.receive(None, ("never",))) for rank in (here, other)]
        await asyncio.sleep(0)
        async with asyncio.timeout(SOON):
            await failing.abort("rank 0 failed at stage 2, microbatch 5")
            ends = await asyncio.gather(*pending, return_exceptions=True)
        assert all(type(end) is PeerAborted and end.rank == 0 for end in ends)
        assert str(ends[0]) == "rank 0 failed at stage 2, microbatch 5"
        with pytest.raises(PeerAborted):
            await here.send(2, ("late",))
        with pytest.raises(Closed):
            await queued
        await sending


async def test_an_abort_does_not_wait_for_a_rank_that_has_stopped_reading():
    async with world(2) as (failing, stuck):
        asyncio.get_running_loop().remove_reader(stuck._peers[0].connection._sock)
        sending = asyncio.create_task(failing.send(1, ("large",), np.zeros(LARGE)))
        await asyncio.sleep(0)
        async with asyncio.timeout(SOON):
            await failing.abort("x" * (1 << 20))
        with pytest.raises(Closed):
            await sending
        kill(stuck)


async def test_a_peer_that_reads_nothing_and_trickles_bytes_does_not_hold_up_closing(monkeypatch):
    monkeypatch.setattr(tcp, "CLOSE_S", 0.1)

    async def trickled(sock):
        while True:
            sock.send(b"\0")
            await asyncio.sleep(0.02)

    closing, trickling = await tcp_world(2)
    connection = trickling._peers[0].connection
    asyncio.get_running_loop().remove_reader(connection._sock)
    pending = asyncio.create_task(closing.send(1, ("large",), numbers(LARGE)))
    trickle = asyncio.create_task(trickled(connection._sock))
    async with asyncio.timeout(SOON):
        await closing.close()
    with pytest.raises(Closed):
        await pending
    with pytest.raises(OSError):
        await trickle
    kill(trickling)


async def test_a_peer_that_takes_a_long_message_slowly_gets_all_of_it_from_a_rank_that_closes(monkeypatch):
    """The peer takes 1 MiB at a time, so that closing lasts longer than the patience for a peer that takes nothing."""
    monkeypatch.setattr(tcp, "CLOSE_S", 0.1)

    closing, slow = await tcp_world(2)
    sock, loop = slow._peers[0].connection._sock, asyncio.get_running_loop()
    loop.remove_reader(sock)
    pending = asyncio.create_task(closing.send(1, ("large",), numbers(LARGE)))
    await asyncio.sleep(0)
    ending, began, came = asyncio.create_task(closing.close()), loop.time(), 0
    while came < LARGE:
        await asyncio.sleep(0.01)
        with suppress(BlockingIOError):
            came += len(sock.recv(1 << 20))
    kill(slow)
    await ending
    await pending
    assert (loop.time() - began) > 0.2


async def test_close_leaves_no_socket_and_no_task():
    async with world(4) as ranks:
        socks = [peer.connection._sock for rank in ranks for peer in rank._peers._peers.values()]
        await ranks[0].send(3, ("last",), numbers(LARGE // 4))
    assert all(sock.fileno() == -1 for sock in socks)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    gc.collect()  # an unclosed socket would warn, and warnings are errors


async def test_a_rank_sends_to_itself_from_memory_that_may_be_reused():
    async with world(1) as (alone,):
        data = numbers(64)
        await alone.send(0, ("mine",), data)
        await alone.send_buffer(0, 1, memoryview(data))
        data[:] = -1
        into, buffer = np.zeros(8, np.int64), bytearray(64)
        await alone.receive(0, ("mine",), [into])
        await alone.receive_buffer(0, 1, memoryview(buffer))
        assert np.array_equal(into, numbers(64)) and buffer == numbers(64).tobytes()


def test_a_loop_over_select_refuses_a_file_that_it_cannot_watch():
    class Far(socket.socket):
        def fileno(self):
            return 1024 if super().fileno() >= 0 else -1

    async def scenario():
        with Far() as sock, pytest.raises(OSError, match="1024 files"):
            make_nonblocking(sock)

    run(scenario(), new_event_loop)


def test_too_low_a_limit_of_open_files_is_an_error_before_the_first_connection(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda which: (256, 256))
    with pytest.raises(RendezvousError, match=r"ranks: 300, open files: 256.*ulimit -n"):
        run(tcp_world(300))
