"""A device is late, or stuck, by its observed progress; time in which this process was stopped does not count."""

import asyncio

import pytest

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import run_virtual
from pipelined.swarm.peer.device_watchdog import (
    CHECKS_PER_LEASE,
    LATE,
    STUCK,
    UNKNOWN_LEASES,
    DeviceLate,
    DeviceStalled,
    DeviceWatchdog,
)
from tests.virtual_time import virtual_seconds
from transports.rpc.virtual.network import VirtualNetwork

LEASE_S, LONG_S = 1.0, 1e3
LOOK_S = LEASE_S / CHECKS_PER_LEASE


async def seen(before, kind="op", stopped=0.0):
    """A device that did some things, and then something of a kind that does not end.

    Args:
        before: how long each took.
        stopped: seconds for which the process is stopped meanwhile.
    Returns: seconds until waiting tasks learn that it is late, and until it counts as stuck; None: never.
    """
    network, took = VirtualNetwork(), {}
    clock = network.clock("p0")
    watchdog = DeviceWatchdog(TimedExecutor(took, clock), LEASE_S)
    watching = network.run("p0", watchdog.watch())
    for took["op"] in before:
        await watchdog.run("op", lambda: None)
    took[kind], began = LONG_S, clock.now()
    stuck = network.run("p0", watchdog.run(kind, lambda: None))
    asking = network.run("p0", watchdog.unless_late(asyncio.Event().wait()))
    await virtual_seconds(0.1)
    if stopped:
        network.freeze("p0")
        await virtual_seconds(stopped)
        network.thaw("p0")
    with pytest.raises(DeviceLate, match=f"{kind} for "):
        await asking
    late = clock.now() - began
    await asyncio.wait([watching], timeout=LONG_S / 2)
    ended = clock.now() - began if watching.done() else None
    network.kill("p0")
    told = await asyncio.gather(watching, stuck, return_exceptions=True)
    assert isinstance(told[0], DeviceStalled) == (ended is not None)
    return late, ended


@pytest.mark.parametrize("before", [[0.01], [0.01, 3.0, 0.01], [5.0] * 3])
def test_what_lasts_far_longer_than_all_of_its_kind_is_late_and_then_stuck(before):
    late, ended = run_virtual(seen(before))
    assert late == pytest.approx(max(LEASE_S, LATE * max(before)), abs=2 * LOOK_S)
    assert ended == pytest.approx(max(UNKNOWN_LEASES * LEASE_S, STUCK * max(before)), abs=2 * LOOK_S)


def test_the_first_of_its_kind_is_late_at_last_and_never_stuck():
    late, ended = run_virtual(seen([0.01], kind="compiled"))
    assert late == pytest.approx(UNKNOWN_LEASES * LEASE_S, abs=2 * LOOK_S) and ended is None


def test_a_process_that_was_stopped_calls_nothing_late_for_that_time():
    late, ended = run_virtual(seen([0.01], stopped=100.0))
    assert late == pytest.approx(100.0 + LEASE_S, abs=3 * LOOK_S)
    assert ended == pytest.approx(100.0 + UNKNOWN_LEASES * LEASE_S, abs=3 * LOOK_S)


@pytest.mark.virtual
async def test_as_long_as_one_thing_after_another_ends_nothing_is_late():
    clock = VirtualNetwork().clock("p0")
    watchdog = DeviceWatchdog(TimedExecutor({"op": 0.9}, clock), LEASE_S)
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(watchdog.watch())
        line = [watchdog.unless_late(watchdog.run("op", lambda: None)) for _ in range(50)]
        await asyncio.gather(*line)
        watching.cancel()
    assert clock.now() == pytest.approx(45.0)


@pytest.mark.virtual
async def test_what_is_waited_for_ends_as_it_ends():
    async def fails():
        raise TimeoutError

    watchdog = DeviceWatchdog(TimedExecutor({}, VirtualNetwork().clock("p0")), LEASE_S)
    with pytest.raises(TimeoutError):
        await watchdog.unless_late(fails())
    assert await watchdog.unless_late(asyncio.sleep(0, "told")) == "told"
