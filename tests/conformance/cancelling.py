"""Clauses on operations that are cancelled: what they leave behind."""

import asyncio

import numpy as np
import pytest

from tests.conformance.neighbours import LARGE, SMALL, filled, left_of, right_of, same, sending, wait_for_all


async def _cancelled(work, turns):
    """Start the work, let the loop turn so many times, cancel; say whether the work was done before."""
    task = asyncio.ensure_future(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return not task.cancelled()


async def a_cancelled_receive_leaves_its_message(end):
    for size in (SMALL, LARGE):
        assert not await _cancelled(end.receive(left_of(end), ("gone", size)), 3)
        await wait_for_all(end, size)
        async with sending(end.send(right_of(end), ("gone", size), filled(end.rank, size))):
            message = await end.receive(left_of(end), ("gone", size))
        assert same(message.blocks[0], filled(left_of(end), size))


async def a_receive_cancelled_at_any_moment_loses_nothing_and_breaks_no_order(end):
    for size in (SMALL, 64 * LARGE):
        for turns in range(12):
            key = ("moment", size, turns)
            async with sending(*(end.send(right_of(end), key, filled(end.rank, size, n), note=n) for n in range(2))):
                await wait_for_all(end, f"{size} {turns}")
                scratch = np.empty(size, np.float32)
                done = await _cancelled(end.receive(left_of(end), key, into=[scratch]), turns)
                scratch[:] = -1
                for n in range(int(done), 2):
                    message = await end.receive(left_of(end), key)
                    assert message.note == n
                    assert same(message.blocks[0], filled(left_of(end), size, n))


async def a_cancelled_receive_lets_go_of_the_receivers_arrays(end):
    size = 64 * LARGE
    async with sending(end.send(right_of(end), ("let go",), filled(end.rank, size))):
        await wait_for_all(end, "offered")
        scratch = np.empty(size, np.float32)
        if not await _cancelled(end.receive(left_of(end), ("let go",), into=[scratch]), 2):
            scratch[:] = -1
            await end.receive(left_of(end), ("let go",))
            assert (scratch == -1).all()


async def a_cancelled_send_is_delivered_completely_or_not_at_all(end):
    for size in (SMALL, LARGE):
        for turns in range(4):
            key = ("half", size, turns)
            await _cancelled(end.send(right_of(end), key, filled(end.rank, size), note="first"), turns)
            async with sending(end.send(right_of(end), key, filled(end.rank, size, 1), note="second")):
                message = await end.receive(left_of(end), key)
                assert same(message.blocks[0], filled(left_of(end), size, int(message.note == "second")))
                if message.note == "first":
                    await end.receive(left_of(end), key)


async def a_cancelled_buffer_receive_leaves_its_buffer(end):
    for size in (1, LARGE):
        assert not await _cancelled(end.receive_buffer(left_of(end), 4, memoryview(bytearray(4 * size))), 3)
        await wait_for_all(end, size)
        mine = bytearray(4 * size)
        async with sending(end.send_buffer(right_of(end), 4, memoryview(filled(end.rank, size)).cast("B"))):
            await end.receive_buffer(left_of(end), 4, memoryview(mine))
        assert mine == filled(left_of(end), size).tobytes()


async def a_buffer_receive_cancelled_at_any_moment_loses_nothing(end):
    for size in (1, 64 * LARGE):
        for turns in range(8):
            mine = bytearray(4 * size)
            async with sending(end.send_buffer(right_of(end), 6, memoryview(filled(end.rank, size, turns)).cast("B"))):
                receive = end.receive_buffer(left_of(end), 6, memoryview(mine))
                if not await _cancelled(receive, turns):
                    mine[:] = bytes(len(mine))
                    await end.receive_buffer(left_of(end), 6, memoryview(mine))
            assert mine == filled(left_of(end), size, turns).tobytes()


async def a_timeout_is_an_ordinary_one(end):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await end.receive(left_of(end), ("never",))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await end.receive_buffer(left_of(end), 8, memoryview(bytearray(1)))
    await wait_for_all(end, "after")
