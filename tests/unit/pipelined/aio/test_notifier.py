"""Who waits is woken by the next ring, however its waiting is run; nobody is by the last one."""

import asyncio

from pipelined.aio.notifier import Bell


async def test_a_ring_wakes_all_who_wait_also_those_whose_tasks_have_not_begun():
    bell = Bell()
    waiting = [asyncio.ensure_future(bell.wait()) for _ in range(3)]
    bell.ring()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert all(each.done() for each in waiting)


async def test_a_ring_is_not_remembered():
    bell = Bell()
    bell.ring()
    waiting = bell.wait()
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_one_who_gives_up_takes_the_ring_from_nobody():
    bell = Bell()
    first, second = bell.wait(), bell.wait()
    first.cancel()
    bell.ring()
    await second
    assert first.cancelled()
