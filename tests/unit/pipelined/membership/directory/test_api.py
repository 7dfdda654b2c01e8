"""A lease that is kept is renewed in time, and the task that keeps it fails when it is lost."""

import asyncio

import pytest

from pipelined.aio.clock import VirtualClock
from pipelined.membership.directory import CutOff, Lease, LeaseLost

pytestmark = pytest.mark.virtual


class NotedLease(Lease):
    """Writes down when it was renewed; from a moment on that fails."""

    number, seconds = 1, 3.0

    def __init__(self, fails=None, at=float("inf")):
        self.clock, self.renewals, self.trouble = VirtualClock(), [], asyncio.Event()
        self._fails, self._at = fails, at

    async def renew(self):
        self.renewals.append(self.clock.now())
        if self.clock.now() >= self._at:
            raise self._fails("a test loses it")

    async def revoke(self):
        raise AssertionError("keeping a lease does not revoke it")

    async def wait_disturbed(self):
        await self.trouble.wait()
        self.trouble.clear()


async def test_it_is_renewed_at_a_third_of_its_time():
    lease = NotedLease()
    keeping = asyncio.create_task(lease.keep_alive(lease.clock))
    await lease.clock.sleep(2.5)
    keeping.cancel()
    assert lease.renewals == [1.0, 2.0]


async def test_it_is_renewed_at_once_when_disturbed():
    lease = NotedLease()
    keeping = asyncio.create_task(lease.keep_alive(lease.clock))
    await lease.clock.sleep(0.25)
    lease.trouble.set()
    await lease.clock.sleep(1.25)
    keeping.cancel()
    assert lease.renewals == [0.25, 1.25]


@pytest.mark.parametrize("error", [LeaseLost, CutOff])
async def test_its_loss_fails_the_task_that_keeps_it(error):
    lease = NotedLease(error, at=2.0)
    with pytest.raises(error, match="a test loses it"):
        await lease.keep_alive(lease.clock)
    assert lease.renewals == [1.0, 2.0]
