"""Doorbells: a ring wakes, costs nothing when the doorbell rings already, and does nothing to a peer that is gone."""

import asyncio
import socket
import sys
from contextlib import asynccontextmanager, suppress

import pytest

from transports.shm.doorbell import MAX_RINGS_PER_READ, NAME_BYTES, Doorbell

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract socket names are Linux's own")


@asynccontextmanager
async def doorbells():
    """Two doorbells that know each other, ringer and sleeper, and an event that a ring of the sleeper sets."""
    woken = asyncio.Event()
    ringer, sleeper = Doorbell(lambda: None), Doorbell(woken.set)
    try:
        assert ringer.connect({0: ringer.name, 1: sleeper.name})
        yield ringer, sleeper, woken
    finally:
        ringer.close()
        sleeper.close()


async def test_a_ring_wakes_the_peer():
    async with doorbells() as (ringer, _, woken):
        ringer.ring(1)
        await woken.wait()


async def test_unread_rings_neither_block_nor_fail():
    async with doorbells() as (ringer, _, woken):
        for _ in range(10_000):
            ringer.ring(1)
        await woken.wait()
        while woken.is_set():  # the kernel keeps a few
            woken.clear()
            for _ in range(3):
                await asyncio.sleep(0)


async def test_a_ring_while_another_thread_closes_does_nothing():
    """A rank that ends closes its doorbell on the loop, while the thread of its device may end a barrier."""

    class Closing(int):
        def __hash__(self):
            ringer.close()
            return hash(int(self))

    async with doorbells() as (ringer, _, _):
        ringer.ring(Closing(1))  # closed where the name is looked up


async def test_a_burst_of_rings_by_another_process_costs_one_poll():
    polls = 0

    def poll():
        nonlocal polls
        polls += 1
        answered.set()

    answered, sleeper = asyncio.Event(), Doorbell(poll)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.setblocking(False)
        for bursts in range(1, 4):
            answered.clear()
            with suppress(BlockingIOError):  # the queue is full: at 10 rings, or 512 under systemd
                for _ in range(MAX_RINGS_PER_READ):
                    stranger.sendto(b"", sleeper.name)
            await asyncio.wait_for(answered.wait(), 20)
            for _ in range(3):
                await asyncio.sleep(0)
            assert polls == bursts
    sleeper.close()


async def test_ringing_an_absent_or_unknown_peer_does_nothing():
    async with doorbells() as (ringer, sleeper, _):
        sleeper.close()
        ringer.ring(1)
        ringer.ring(7)


async def test_an_unknown_name_means_that_not_all_can_be_woken():
    async with doorbells() as (ringer, sleeper, woken):
        assert not ringer.connect({1: sleeper.name, 2: bytes(NAME_BYTES)})
        assert not ringer.connect({2: sleeper.name.replace(b"pipelined", b"elsewhere")})
        woken.clear()
        ringer.connect({1: sleeper.name, 2: bytes(NAME_BYTES)})
        await woken.wait()


async def test_names_are_of_the_promised_length_and_all_different():
    async with doorbells() as (ringer, sleeper, _):
        assert len(ringer.name) == len(sleeper.name) == NAME_BYTES
        assert ringer.name != sleeper.name
