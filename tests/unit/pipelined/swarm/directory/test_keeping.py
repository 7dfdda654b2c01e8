"""A kept lease ends with its scope, and its scope with it."""

import asyncio

import pytest

from pipelined.clock import VirtualClock
from pipelined.swarm.directory import CutOff, Lease, LeaseLost, keep, kept
from transports import Closed

pytestmark = pytest.mark.virtual


class Ledger:
    """A directory that writes down when its one lease was renewed and revoked, and fails as it is told."""

    def __init__(self, fails=None, at=float("inf")):
        self.clock, self.story = VirtualClock(), []
        self.fails, self.at = fails, at

    async def grant(self, seconds):
        return LedgerLease(self, seconds)

    def note(self, what):
        self.story.append((what, self.clock.now()))
        if self.clock.now() >= self.at:
            raise self.fails("so it was told")


class LedgerLease(Lease):
    number = 1

    def __init__(self, ledger, seconds):
        self.seconds, self._ledger, self.trouble = seconds, ledger, asyncio.Event()

    async def renew(self):
        self._ledger.note("renew")

    async def revoke(self):
        self._ledger.note("revoke")

    async def disturbed(self):
        await self.trouble.wait()
        self.trouble.clear()


async def test_it_is_renewed_at_a_third_of_its_time_and_revoked_at_the_end():
    ledger = Ledger()
    async with kept(ledger, 3.0, ledger.clock):
        await ledger.clock.sleep(2.5)
    assert ledger.story == [("renew", 1.0), ("renew", 2.0), ("revoke", 2.5)]


async def test_it_is_renewed_at_once_when_disturbed():
    ledger = Ledger()
    async with kept(ledger, 3.0, ledger.clock) as lease:
        await ledger.clock.sleep(0.25)
        lease.trouble.set()
        await ledger.clock.sleep(1.25)
    assert ledger.story == [("renew", 0.25), ("renew", 1.25), ("revoke", 1.5)]


@pytest.mark.parametrize("error", [LeaseLost, CutOff])
async def test_its_owner_is_cancelled_where_it_stands_and_told_why(error):
    ledger, story = Ledger(error, at=2.0), []
    with pytest.raises(error, match="so it was told"):
        async with kept(ledger, 3.0, ledger.clock):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                story.append(ledger.clock.now())
                raise
    assert story == [2.0]


async def test_it_fails_the_group_of_tasks_that_keeps_it():
    ledger = Ledger(LeaseLost, at=2.0)
    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(keep(await ledger.grant(3.0), ledger.clock))
            tasks.create_task(asyncio.Event().wait())
    assert [type(error) for error in caught.value.exceptions] == [LeaseLost]


async def test_an_error_of_its_owner_passes_as_it_is():
    ledger = Ledger()
    mine = ExceptionGroup("mine", [KeyError("a")])
    with pytest.raises(ExceptionGroup) as caught:
        async with kept(ledger, 3.0, ledger.clock):
            raise mine
    assert caught.value is mine
    assert ledger.story == [("revoke", 0.0)]


async def test_a_cancelled_owner_revokes_and_stays_cancelled():
    ledger = Ledger()

    async def own():
        async with kept(ledger, 3.0, ledger.clock):
            await asyncio.Event().wait()

    owner = asyncio.create_task(own())
    await ledger.clock.sleep(0.5)
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert ledger.story == [("revoke", 0.5)]


@pytest.mark.parametrize("error", [CutOff, Closed])
async def test_a_directory_that_is_gone_does_not_keep_its_owner(error):
    ledger = Ledger(error, at=0.5)
    async with kept(ledger, 3.0, ledger.clock):
        await ledger.clock.sleep(0.5)
    assert ledger.story == [("revoke", 0.5)]
