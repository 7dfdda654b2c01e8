"""A nursery ends its children, tells the first error, and neither loses a cancellation nor invents one."""

import asyncio

import pytest

from pipelined.aio.clock import VirtualClock, run_virtual
from transports import Nursery

pytestmark = pytest.mark.virtual


class Broken(Exception):
    pass


async def breaks(after=0.0):
    await VirtualClock().sleep(after)
    raise Broken


async def waits():
    await asyncio.get_running_loop().create_future()


def test_the_first_error_of_a_child_ends_siblings_and_block():
    async def block():
        async with Nursery() as tasks:
            tasks.create_task(waits())
            tasks.create_task(breaks(1.0))
            await waits()

    with pytest.raises(Broken):
        run_virtual(block())


def test_an_error_of_the_block_ends_its_children():
    async def block():
        async with Nursery() as tasks:
            child = tasks.create_task(waits())
            await asyncio.sleep(0)
            try:
                raise Broken
            finally:
                children.append(child)

    children = []
    with pytest.raises(Broken):
        run_virtual(block())
    assert children[0].cancelled()


async def test_leaving_waits_for_the_children():
    async with Nursery() as tasks:
        tasks.create_task(VirtualClock().sleep(3.0))
    assert VirtualClock().now() == 3.0


async def is_cancelled_after_a_second(parent):
    """Cancel a parent after a virtual second; whether it then ends as cancelled."""
    task = asyncio.create_task(parent)
    await VirtualClock().sleep(1.0)
    task.cancel()
    await asyncio.wait([task], timeout=10)
    return task.cancelled()


async def test_a_cancellation_is_not_lost_where_a_child_fails_in_the_same_moment():
    """With a task group the parent caught the child's error, went on in its loop, and the program never ended."""

    async def parent():
        while True:
            try:
                async with Nursery() as tasks:
                    tasks.create_task(breaks(1.0))
            except Broken:
                continue

    assert await is_cancelled_after_a_second(parent())


async def test_a_parent_with_a_failed_child_is_not_marked_as_cancelled():
    """With a task group it did, and the next scope that read the mark ended a task without a cancellation."""

    with pytest.raises(Broken):
        async with Nursery() as tasks:
            tasks.create_task(breaks(1.0))
    assert asyncio.current_task().cancelling() == 0
    with pytest.raises(Broken):
        async with Nursery() as tasks:
            tasks.create_task(breaks(1.0))
            await waits()
    assert asyncio.current_task().cancelling() == 0


async def test_a_time_out_around_it_is_reported_as_one():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0), Nursery() as tasks:
            tasks.create_task(waits())
            await waits()


async def test_a_child_made_while_the_block_is_cancelled_is_cancelled_too():
    """A child that started another one while it was being cancelled kept the block waiting for ever."""

    async def starts_another():
        try:
            await waits()
        finally:
            tasks.create_task(waits())

    async def parent():
        nonlocal tasks
        async with Nursery() as tasks:
            tasks.create_task(starts_another())

    tasks = None
    assert await is_cancelled_after_a_second(parent())


def test_a_child_s_error_keeps_its_own_context():
    async def child():
        try:
            raise KeyError("first")
        except KeyError:
            raise Broken  # noqa: B904 (the context is what is looked at)

    async def main():
        async with Nursery() as tasks:
            tasks.create_task(child())
            await waits()

    with pytest.raises(Broken) as caught:
        run_virtual(main())
    assert isinstance(caught.value.__context__, KeyError)
