"""An actor fathers its tasks: nothing is left behind, and its first failure is what comes out."""

import asyncio

import pytest

from pipelined.actor import Actor, first_cause
from transports.local import world


def run(coroutine):
    return asyncio.run(coroutine)


def test_what_is_told_is_taken_before_the_actor_ends():
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


def test_the_first_cause_is_found_in_groups_of_groups():
    inner = ExceptionGroup("inner", [ValueError("first"), ValueError("second")])
    assert str(first_cause(ExceptionGroup("outer", [inner, KeyError("third")]))) == "first"
