"""Steps enter a segment only so far behind those settled, and all ranks end it at the same one."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelined.training.segments.overlapping_steps import StepAdmission


def entered(admission, step):
    """Whether a step enters; None if that is not known yet."""

    async def main():
        asking = asyncio.create_task(admission.admits(step))
        await asyncio.sleep(0)
        if asking.done():
            return asking.result()
        asking.cancel()
        return None

    return asyncio.run(main())


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 20))
def test_a_segment_ends_the_admitted_steps_after_the_one_of_the_stop_request(steps, ahead, stopped):
    admission, settled = StepAdmission(steps, ahead), 0
    while entered(admission, settled):
        assert admission.opened <= settled + ahead
        admission.record_agreed(settled, stop=settled == stopped)
        settled += 1
    assert settled == admission.opened == min(steps, stopped + ahead)


@pytest.mark.parametrize("stop, enters", [(False, True), (True, False)])
async def test_a_request_that_comes_too_early_waits_for_its_reply(stop, enters):
    admission = StepAdmission(10, ahead=2)
    asking = [asyncio.create_task(admission.admits(2)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in asking)
    admission.record_agreed(0, stop)
    assert (await asyncio.gather(*asking)) == [enters, enters]
