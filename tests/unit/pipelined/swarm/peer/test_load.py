"""How much a peer has to do, as stages are balanced by it."""

import asyncio

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.swarm.peer.stage_state import Load


async def work(load, seconds):
    with load.busy():
        await VirtualClock().sleep(seconds)


def taken(*works, until=10.0):
    """The load of ten seconds, after works that begin at these moments and take so long."""

    async def one(load, begins, seconds):
        await VirtualClock().sleep(begins)
        await work(load, seconds)

    async def main():
        load = Load(VirtualClock())
        async with asyncio.TaskGroup() as tasks:
            for begins, seconds in works:
                tasks.create_task(one(load, begins, seconds))
            await VirtualClock().sleep(until)
            return load.read_and_reset()

    return run_virtual(main())


def test_an_idle_peer_has_no_load():
    assert taken() == 0.0


def test_the_load_of_a_partly_idle_peer_is_its_busy_share():
    assert taken((1.0, 2.0), (2.0, 3.0)) == 0.4


def test_a_queue_that_empties_is_no_more_than_a_busy_time():
    assert taken((0.0, 5.0), (0.0, 5.0), (0.0, 5.0)) == 0.5


def test_the_load_of_a_busy_peer_is_its_shortest_queue():
    async def main():
        load = Load(VirtualClock())
        async with asyncio.TaskGroup() as tasks:
            for seconds in (20.0, 20.0, 12.0):
                tasks.create_task(work(load, seconds))
            await VirtualClock().sleep(5.0)
            load.read_and_reset()  # what was before counts no more
            await VirtualClock().sleep(10.0)
            return load.read_and_reset()

    assert run_virtual(main()) == 2.0
