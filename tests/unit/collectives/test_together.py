import asyncio

import pytest

from collectives._together import together


async def fail(error):
    await asyncio.sleep(0)
    raise error


async def wait(ended):
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(True)


@pytest.mark.parametrize("order", [1, -1])
def test_the_first_error_ends_the_other_and_comes_bare(order):
    async def main():
        ended = []
        with pytest.raises(KeyError):
            await together(*(fail(KeyError("x")), wait(ended))[::order])
        assert ended == [True]

    asyncio.run(asyncio.wait_for(main(), 5))


def test_cancelling_ends_both():
    async def main():
        ended = []
        call = asyncio.ensure_future(together(wait(ended), wait(ended)))
        for _ in range(3):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert ended == [True, True]

    asyncio.run(main())


def test_the_first_one_steps_first():
    async def main():
        order = []

        async def note(name):
            order.append(name)

        await together(note("first"), note("second"))
        assert order == ["first", "second"]

    asyncio.run(main())
