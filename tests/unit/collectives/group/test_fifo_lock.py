"""A group's turn: first come, first served, and no call continues on a broken group."""

import asyncio

import pytest

from collectives import BrokenGroup
from collectives.group.fifo_lock import FifoLock


@pytest.fixture
def turn():
    return FifoLock("the group")


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_free_turn_is_taken_at_once_and_by_one_alone(turn):
    assert turn.acquire_nowait() and not turn.acquire_nowait()
    turn.release(None)
    await turn.acquire()
    assert not turn.acquire_nowait()


async def test_the_turn_goes_to_the_call_that_has_waited_longest(turn):
    order = []

    async def wait(name):
        await turn.acquire()
        order.append(name)

    assert turn.acquire_nowait()
    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(wait(name))
        await turns()
        for count in range(1, 4):
            turn.release(None)
            assert not turn.acquire_nowait()  # it belongs to the first waiting task, which has not run yet
            await turns()
            assert order == [*"abc"[:count]]
    turn.release(None)
    assert turn.acquire_nowait()


async def test_after_an_error_every_waiting_call_is_refused(turn):
    assert turn.acquire_nowait()
    waiting = [asyncio.ensure_future(turn.acquire()) for _ in range(3)]
    await turns()
    turn.release(ValueError("left"))
    for call in waiting:
        with pytest.raises(BrokenGroup, match=r"the group .*left"):
            await call
    with pytest.raises(BrokenGroup):
        turn.acquire_nowait()


@pytest.mark.parametrize("passed_on", [False, True])
async def test_a_call_cancelled_while_it_waits_breaks_the_group_and_passes_the_turn_on(turn, passed_on):
    assert turn.acquire_nowait()
    first, second = (asyncio.ensure_future(turn.acquire()) for _ in range(2))
    await turns()
    if passed_on:
        turn.release(None)
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    if not passed_on:
        turn.release(None)
    with pytest.raises(BrokenGroup):
        await second
