"""What clauses share: neighbours on a ring, waiting for one another, and arrays that tell where they are from."""

import asyncio
from contextlib import asynccontextmanager

import numpy as np

SMALL, LARGE = (
    16,
    1 << 16,
)  # items of float32; some transports hold the large one (256 KiB) at the sender


def left_of(end):
    return (end.rank - 1) % end.world_size


def right_of(end):
    return (end.rank + 1) % end.world_size


def filled(rank, items, salt=0):
    """An array that no other test sends."""
    return np.arange(items, dtype=np.float32) + rank * 1000 + salt


def same(block, array):
    """Whether a block holds this array: dtype, shape and bits."""
    got = block.numpy()
    return got.dtype == array.dtype and got.shape == array.shape and got.tobytes() == array.tobytes()


def public(kind):
    """The public members of a class, those that it only annotates included."""
    return {name for name in {*dir(kind), *kind.__annotations__} if not name.startswith("_")}


@asynccontextmanager
async def sending(*sends):
    """Run sends beside the body, and see them end well after it."""
    async with asyncio.TaskGroup() as group:
        for send in sends:
            group.create_task(send)
        await asyncio.sleep(0)
        yield


async def wait_for_all(end, name):
    """Return when every rank is here; small empty messages, which every transport carries without more ado."""
    ranks = range(end.world_size)
    async with sending(*(end.send(rank, ("wait_for_all", name)) for rank in ranks)):
        for rank in ranks:
            await end.receive(rank, ("wait_for_all", name))


async def meet_and_leave(end, leaver):
    """As `wait_for_all`, but the rank that is about to leave returns last, so that no rank still needs it."""
    await wait_for_all(end, "all here")
    if end.rank != leaver:
        return await end.send(leaver, ("go",))
    for rank in range(end.world_size):
        if rank != leaver:
            await end.receive(rank, ("go",))


async def outcomes(*works):
    """What each of these ends in, results and exceptions alike."""
    return await asyncio.gather(*works, return_exceptions=True)


async def all_raise(error, match, *works):
    """Each of these raises this error, with this text in it; give the errors back."""
    ends = await outcomes(*works)
    for end in ends:
        assert isinstance(end, error), repr(end)
        assert match in str(end)
    return ends
