"""A notifier wakes all that wait, however the waiting is run, and nothing that begins to wait afterwards."""

import asyncio

from pipelined.aio.tasks import Notifier


async def test_a_notification_wakes_all_waiters_also_those_in_tasks_that_have_not_begun():
    notifier = Notifier()
    waiting = [asyncio.ensure_future(notifier.wait()) for _ in range(3)]
    notifier.notify_all()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert all(each.done() for each in waiting)


async def test_a_notification_is_not_kept():
    notifier = Notifier()
    notifier.notify_all()
    waiting = notifier.wait()
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()


async def test_a_cancelled_waiter_does_not_cancel_the_others():
    notifier = Notifier()
    first, second = notifier.wait(), notifier.wait()
    first.cancel()
    notifier.notify_all()
    await second
    assert first.cancelled()
