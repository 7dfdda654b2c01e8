"""The two clocks: virtual time is exact and instant, and a loop on which every task waits raises."""

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.aio.clock import Deadlock, RealClock, VirtualClock, run_virtual

pytestmark = pytest.mark.virtual

seconds = st.floats(1e-12, 1e12)


async def slept(*naps):
    clock, moments = VirtualClock(), []
    for nap in naps:
        await clock.sleep(nap)
        moments.append(clock.now())
    return moments


def test_virtual_time_starts_at_zero_and_is_the_sum_of_the_sleeps():
    assert run_virtual(slept(0, 1, 0.5, 0)) == [0, 1, 1.5, 1.5]


@given(st.lists(seconds, min_size=1, max_size=8))
def test_a_lone_sleeper_wakes_exactly_in_time_at_any_magnitude(naps):
    moment, expected = 0.0, []
    for nap in naps:
        moment += nap
        expected.append(moment)
    assert run_virtual(slept(*naps)) == expected


@given(st.lists(seconds, min_size=2, max_size=8, unique=True))
def test_sleepers_wake_in_the_order_of_their_moments(naps):
    woken = []

    async def nap(duration):
        await VirtualClock().sleep(duration)
        woken.append(duration)

    async def everyone():
        await asyncio.gather(*map(nap, naps))

    run_virtual(everyone())
    assert woken == sorted(naps)


async def test_a_cancelled_sleeper_does_not_disturb_others():
    clock = VirtualClock()
    sleepers = [asyncio.ensure_future(clock.sleep(5)) for _ in range(3)]
    await clock.sleep(1)
    sleepers[1].cancel()
    await asyncio.wait(sleepers)
    assert (clock.now(), [sleeper.cancelled() for sleeper in sleepers]) == (5, [False, True, False])


async def test_a_call_comes_at_its_moment_unless_it_is_cancelled():
    clock, called = VirtualClock(), []
    clock.call_at(2, lambda: called.append(clock.now()))
    clock.call_at(3, lambda: called.append("cancelled")).cancel()
    await clock.sleep(4)
    assert called == [2]


async def test_time_stands_still_while_anything_is_ready():
    clock = VirtualClock()
    timer = asyncio.ensure_future(clock.sleep(1))
    for _ in range(1000):
        await asyncio.sleep(0)
        assert clock.now() == 0 and not timer.done()
    await timer
    assert clock.now() == 1


def test_a_timeout_fires_at_its_virtual_moment():
    async def patient():
        try:
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        except TimeoutError:
            return VirtualClock().now()

    assert run_virtual(patient()) == 3600


def test_what_the_program_raises_comes_out():
    async def broken():
        await VirtualClock().sleep(1)
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        run_virtual(broken())


def test_a_deadlock_names_the_waiting_tasks():
    async def stuck():
        await asyncio.Event().wait()

    async def everyone():
        async with asyncio.TaskGroup() as group:
            group.create_task(stuck(), name="worker 7")

    with pytest.raises(Deadlock, match=r"tasks: 2\)(.|\n)*worker 7 at .*locks.py:\d+ in Event.wait"):
        run_virtual(everyone())


def test_a_deadlock_of_many_names_the_first_and_counts_the_rest():
    async def everyone():
        await asyncio.gather(*(asyncio.Event().wait() for _ in range(40)))

    with pytest.raises(Deadlock, match="and 25 more"):
        run_virtual(everyone())


def test_a_timer_at_infinity_never_comes():
    with pytest.raises(Deadlock):
        run_virtual(slept(1, math.inf))


def test_a_deadlock_cancels_every_task_before_it_is_raised():
    cancelled = []

    async def stuck():
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    with pytest.raises(Deadlock):
        run_virtual(stuck())
    assert cancelled == [True]


def test_the_virtual_clock_refuses_a_real_loop():
    async def mistaken():
        VirtualClock().now()

    with pytest.raises(RuntimeError, match="run_virtual"):
        asyncio.run(mistaken())


def test_the_real_clock_goes_forward():
    async def twice():
        clock = RealClock()
        before = clock.now()
        await clock.sleep(0)
        return before, clock.now()

    before, after = asyncio.run(twice())
    assert after > before
