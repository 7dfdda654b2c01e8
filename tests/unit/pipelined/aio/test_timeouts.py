"""Work has ended, one way or another, when the wait for it has."""

import asyncio

import pytest

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.aio.timeouts import with_timeout

pytestmark = pytest.mark.virtual

CLOCK = VirtualClock()


async def worked(seconds, story):
    try:
        await CLOCK.sleep(seconds)
        return "done"
    except asyncio.CancelledError:
        story.append(CLOCK.now())
        raise


def test_what_comes_in_time_is_returned():
    assert run_virtual(with_timeout(CLOCK, 2.0, worked(1.0, []))) == "done"


async def test_what_does_not_is_cancelled():
    story = []
    with pytest.raises(TimeoutError, match=r"nothing came within 2 s"):
        await with_timeout(CLOCK, 2.0, worked(3.0, story))
    assert story == [2.0]


async def test_its_error_is_raised():
    async def failing():
        raise KeyError("a")

    with pytest.raises(KeyError):
        await with_timeout(CLOCK, 2.0, failing())


async def test_cancellation_reaches_the_work():
    story = []
    waiting = asyncio.create_task(with_timeout(CLOCK, 2.0, worked(3.0, story)))
    await CLOCK.sleep(1.0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert story == [1.0]
