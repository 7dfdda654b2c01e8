"""An actor fathers its tasks: nothing is left behind, and its first failure is what comes out."""

import asyncio

import pytest

from pipelined.actors.actor import Actor
from transports.local import world


def run(coroutine):
    return asyncio.run(coroutine)


def test_what_is_reported_is_taken_before_the_actor_ends():
    async def main():
        one, other = world(2)
        async with Actor(one) as teller, Actor(other) as listener:
            teller.tell(1, ("greeting", 7), b"hello", note={"n": 1})
            frame = await listener.receive(0, ("greeting", 7))
        return bytes(frame.blocks[0].data), frame.note

    assert run(main()) == (b"hello", {"n": 1})


def test_a_failing_task_cancels_its_siblings_and_comes_out_bare():
    cancelled = []

    async def waits():
        try:
            await asyncio.Future()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def fails():
        await asyncio.sleep(0)
        raise KeyError("stage 3")

    async def main():
        (only,) = world(1)
        async with Actor(only) as actor:
            actor.start(waits())
            actor.start(fails())
            await actor.receive(0, ("never", 0))

    with pytest.raises(KeyError, match="stage 3"):
        run(main())
    assert cancelled == [True]


def fails_when_cancelled():
    async def child():
        try:
            await asyncio.Future()
        finally:
            raise RuntimeError("a child that fails while it is cancelled")

    return child()


def test_the_error_of_the_block_comes_out_though_a_child_fails_while_it_is_cancelled_for_it():
    """The child's error came out instead: the program ended naming a consequence."""

    async def main():
        (only,) = world(1)
        async with Actor(only) as actor:
            actor.start(fails_when_cancelled())
            await asyncio.sleep(0)
            raise ValueError("stage 3 failed")

    with pytest.raises(ValueError, match="stage 3 failed"):
        run(main())


def test_a_cancellation_from_outside_is_not_lost_though_a_child_fails_in_the_same_moment():
    """The child's error came out instead, and a caller that handled it went on running after it was cancelled."""

    async def main():
        async def job():
            (only,) = world(1)
            async with Actor(only) as actor:
                actor.start(fails())

        async def fails():
            task.cancel()
            raise RuntimeError("a child")

        task = asyncio.create_task(job())
        await asyncio.wait([task])
        return task.cancelled()

    assert run(main())


def test_an_actor_that_has_ended_starts_nothing():
    async def main():
        (only,) = world(1)
        async with Actor(only) as actor:
            pass
        actor.tell(0, ("late", 0))

    with pytest.raises(RuntimeError, match="has ended"):
        run(main())
