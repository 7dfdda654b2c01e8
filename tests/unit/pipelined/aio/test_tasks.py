"""Tasks beside others, the first of several, and time-outs end what they began, and lose no error or cancellation."""

import asyncio

import pytest

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.aio.tasks import beside, cancel_and_wait, first_of, with_timeout

pytestmark = pytest.mark.virtual


class Broken(Exception):
    pass


async def breaks(after=0.0):
    await VirtualClock().sleep(after)
    raise Broken


async def waits():
    await asyncio.get_running_loop().create_future()


async def comes(after, to):
    await VirtualClock().sleep(after)
    return to


async def test_what_goes_on_beside_a_piece_of_work_ends_with_it():
    assert (await beside(comes(1.0, "done"), waits(), waits()), asyncio.all_tasks() - {asyncio.current_task()}) == (
        "done",
        set(),
    )


def test_what_fails_beside_a_piece_of_work_ends_it():
    with pytest.raises(Broken):
        run_virtual(beside(waits(), waits(), breaks(1.0)))


pytestmark = pytest.mark.virtual

CLOCK = VirtualClock()


async def worked(seconds, story):
    try:
        await CLOCK.sleep(seconds)
        return "done"
    except asyncio.CancelledError:
        story.append(CLOCK.now())
        raise


async def ends(after, result, ended=None):
    try:
        await VirtualClock().sleep(after)
        return result
    finally:
        if ended is not None:
            ended.append(result)


async def test_the_first_result_is_returned_and_the_others_are_cancelled():
    ended = []
    assert await first_of(ends(2.0, "late", ended), ends(1.0, "first", ended), waits()) == "first"
    assert VirtualClock().now() == 1.0 and ended == ["first", "late"]


async def test_of_results_at_one_moment_that_of_the_first_named_is_returned():
    assert await first_of(ends(1.0, "a"), ends(1.0, "b")) == "a"
    assert await first_of(ends(2.0, "c"), ends(1.0, "d"), ends(1.0, "e")) == "d"


async def test_an_error_before_any_result_is_raised():
    with pytest.raises(Broken):
        await first_of(ends(2.0, "late"), breaks(1.0))


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


async def test_a_time_out_of_the_work_itself_is_raised_as_it_is():
    async def late():
        raise TimeoutError("the work's own")

    with pytest.raises(TimeoutError, match="the work's own"):
        await with_timeout(CLOCK, 2.0, late())


async def test_the_work_runs_in_the_task_that_waits_for_it_beside_one_that_sleeps():
    async def tasks():
        await CLOCK.sleep(1.0)
        return asyncio.current_task(), len(asyncio.all_tasks())

    before = len(asyncio.all_tasks())
    assert await with_timeout(CLOCK, 2.0, tasks()) == (asyncio.current_task(), before + 1)
    await CLOCK.sleep(0)
    assert len(asyncio.all_tasks()) == before


async def test_a_clock_that_fails_ends_the_work_with_its_error():
    """As that of a killed process does: its work must not wait for ever."""

    class Killed(VirtualClock):
        async def sleep(self, seconds):
            await super().sleep(1.0)
            raise Broken

    story = []
    with pytest.raises(Broken):
        await with_timeout(Killed(), 2.0, worked(3.0, story))
    assert story == [1.0]


@pytest.mark.parametrize("seconds", [0.0, 2.0])
async def test_a_result_that_is_there_at_once_is_returned(seconds):
    async def at_once():
        return "done"

    assert await with_timeout(CLOCK, seconds, at_once()) == "done"
    await CLOCK.sleep(3.0)


def test_tasks_are_cancelled_to_their_end_and_a_cancellation_meanwhile_is_not_lost():
    async def ends_late():
        try:
            await waits()
        finally:
            await VirtualClock().sleep(2.0)

    async def block():
        child = asyncio.create_task(ends_late())
        await VirtualClock().sleep(1.0)
        cancelling = asyncio.create_task(cancel_and_wait(child))
        await VirtualClock().sleep(1.0)
        assert not child.done()
        cancelling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelling
        await cancel_and_wait(child)
        assert child.cancelled()
        await cancel_and_wait()

    run_virtual(block())
