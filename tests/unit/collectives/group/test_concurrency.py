"""Two coroutines run as one: the first error ends the other, and cancelling ends both."""

import asyncio

import pytest

from collectives.group.concurrency import run_both


async def fail(error):
    await asyncio.sleep(0)
    raise error


async def wait(ended):
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(True)


@pytest.mark.parametrize("order", [1, -1])
async def test_the_first_error_ends_the_other_and_comes_bare(order):
    ended = []
    with pytest.raises(KeyError):
        await run_both(*(fail(KeyError("x")), wait(ended))[::order])
    assert ended == [True]


async def test_an_error_before_the_second_one_waits_cancels_the_first_one():
    """A send without its cleanup leaves the caller's array queued, to be read after the call has raised."""

    ended = []

    async def send():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(True)
            raise

    async def receive():
        raise KeyError("x")

    with pytest.raises(KeyError):
        await run_both(send(), receive())
    assert ended == [True]


async def test_cancelling_ends_both():
    ended = []
    call = asyncio.ensure_future(run_both(wait(ended), wait(ended)))
    for _ in range(3):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended == [True, True]


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
async def test_the_first_call_starts_at_once(steps):
    order = []

    async def note(name, count):
        for step in range(count):
            order.append(f"{name}{step}")
            await asyncio.sleep(0)
        order.append(name)

    await run_both(note("a", steps), note("b", 1))
    assert order[0] == "a0"[: 2 - (steps == 0)] and order.index("b0") == 1
    assert [name for name in order if name[0] == "a"] == [f"a{step}" for step in range(steps)] + ["a"]
    assert order.count("b") == 1


async def test_what_ends_at_once_needs_no_task():
    async def nothing():
        pass

    async def count():
        assert len(asyncio.all_tasks()) == 1

    await run_both(nothing(), count())


async def test_an_error_at_the_first_step_leaves_the_other_one_unbegun():
    ended = []

    async def fail_now():
        raise KeyError("x")

    with pytest.raises(KeyError):
        await run_both(fail_now(), wait(ended))
    assert ended == []


async def test_a_first_that_swallows_its_cancelling_is_waited_for():
    order = []

    async def stubborn():
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            order.append("let go")

    with pytest.raises(KeyError):
        await run_both(stubborn(), fail(KeyError("x")))
    assert order == ["let go"]
