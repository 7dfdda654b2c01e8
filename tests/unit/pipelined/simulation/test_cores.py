"""Shared cores: what is worked out by hand, and a slow and simple sharing that takes tiny turns."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.simulation.cores import VirtualCores


def ends(number, jobs):
    """When each (start, seconds) is done."""

    async def main():
        cores, clock = VirtualCores(number), VirtualClock()

        async def one(start, seconds):
            await clock.sleep(start)
            await cores.run(seconds)
            return clock.now()

        return await asyncio.gather(*(one(*job) for job in jobs))

    return run_virtual(main())


def test_two_on_one_core_take_turns():
    """The first does 1 of its 2 alone; then each goes at half speed, until both are done at 3."""
    assert ends(1, [(0, 2), (1, 1)]) == [3, 3]


def test_the_work_that_is_left_goes_on_at_full_speed():
    assert ends(1, [(0, 1), (0, 3)]) == [2, 4]


def test_three_on_two_cores_go_at_two_thirds():
    assert ends(2, [(0, 2), (0, 2), (0, 2)]) == pytest.approx([3, 3, 3])


@pytest.mark.parametrize("number", [0, 3])
def test_no_work_waits_where_there_are_cores_enough(number):
    assert ends(number, [(0, 2), (1, 5), (1, 1)]) == [2, 6, 2]


jobs = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=6)


def in_tiny_turns(number, jobs, turn=1 / 64):
    now, left, done = 0.0, [float(seconds) for _, seconds in jobs], {}
    while len(done) < len(jobs):
        busy = [i for i, (start, _) in enumerate(jobs) if start <= now and i not in done]
        now += turn
        for i in busy:
            left[i] -= turn * min(1, number / len(busy))
            if left[i] <= 1e-9:
                done[i] = now
    return [done[i] for i in range(len(jobs))]


@settings(max_examples=60)
@given(st.integers(1, 4), jobs)
def test_it_is_the_limit_of_tiny_turns(number, jobs):
    assert ends(number, jobs) == pytest.approx(in_tiny_turns(number, jobs), abs=0.2)
