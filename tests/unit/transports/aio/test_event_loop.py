"""What a long call does to let the loop run."""

import asyncio

import pytest

from transports import new_event_loop
from transports.aio.event_loop import yield_to_timers


@pytest.mark.parametrize("factory", [new_event_loop, asyncio.new_event_loop])
def test_yield_to_timers_resumes_after_all_due_timers(factory):
    ran = []

    async def other():
        loop = asyncio.get_running_loop()
        due = loop.create_future()
        loop.call_at(loop.time(), due.set_result, None)
        await due
        ran.append("other")

    async def main():
        task = asyncio.ensure_future(other())
        await asyncio.sleep(0)
        await yield_to_timers()
        ran.append("main")
        await task

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main())
    assert ran == ["other", "main"]


def test_a_cancelled_step_aside_leaves_no_failing_callback():
    async def main():
        waiting = asyncio.ensure_future(yield_to_timers())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        await yield_to_timers()
        assert waiting.cancelled()

    asyncio.run(main(), debug=True)
