"""A group's windows are opened once, in the order of the calls."""

import asyncio
from collections import defaultdict
from itertools import count

import pytest

from collectives import BrokenGroup
from collectives.group.identity import GroupIdentity
from collectives.group.shared_memory import SharedMemory
from tests.conformance.worlds import local_world


def memories():
    """The shared memory of two ranks; an opening ends when the other rank opens the same one, as over MPI."""
    meetings = defaultdict(lambda: asyncio.Barrier(2))

    def meeting(end):
        open_shared, numbers = end.open_shared, count()

        async def opened(*group):
            await meetings[next(numbers)].wait()
            return await open_shared(*group)

        return opened

    ends = local_world(2, shared_memory=True)
    for end in ends:
        end.open_shared = meeting(end)
    return [SharedMemory(GroupIdentity(end, (0, 1), 0), 1024) for end in ends]


async def test_calls_at_the_same_time_open_one_window():
    """The second call once opened windows of its own, for which the other rank, one call after another, never came."""
    here, there = memories()
    calls, order = [], []
    for number in range(3):
        calls.append(asyncio.ensure_future(here.open()))
        calls[-1].add_done_callback(lambda _, number=number: order.append(number))
    await asyncio.wait_for(there.open(), 5)
    windows = await asyncio.wait_for(asyncio.gather(*calls), 5)
    assert await there.open() is there.memory
    assert windows == [here.memory] * 3
    assert order == [0, 1, 2]


async def test_after_a_cancelled_opening_the_group_is_broken():
    """The other ranks may have opened, and wait for this one in what follows."""
    here, _ = memories()
    first, second = (asyncio.ensure_future(here.open()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first, second], timeout=5)
    assert first.cancelled()
    with pytest.raises(BrokenGroup, match=r"Group\(ranks=\(0, 1\), channel=0\) was left in the middle"):
        second.result()
