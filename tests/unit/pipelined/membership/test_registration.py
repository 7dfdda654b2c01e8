"""A registration is renewed while its block runs, also while the directory is cut off; a lost lease ends the block."""

import asyncio

import pytest

from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.membership.directory import Conflict, CutOff, Directory, Entry, Lease, LeaseLost
from pipelined.membership.registration import NameTaken, Registration, registered
from pipelined.swarm.records.members import LeaderRecord

KEY = "peers/p0"
RECORD = LeaderRecord("p0", "tcp://a:1")


class Scripted(Lease):
    """A lease with scripted outcomes of its renewals; the last one repeats."""

    number, seconds = 7, 3.0

    def __init__(self, *renewals):
        self.renewals, self.renewed = list(renewals), 0

    async def renew(self):
        self.renewed += 1
        outcome = self.renewals[0] if len(self.renewals) == 1 else self.renewals.pop(0)
        if outcome is not None:
            raise outcome

    async def revoke(self):
        pass


class Place(Directory):
    """Some keys in memory."""

    def __init__(self, lease=None, **entries):
        self.lease, self.entries, self.revision = lease, entries, 10

    async def read(self, prefix=""):
        raise NotImplementedError

    async def transact(self, expect, put, delete=(), lease=None):
        entries = {key: self.entries.get(key) for key in expect}
        if any((entry.revision if entry else 0) != expect[key] for key, entry in entries.items()):
            raise Conflict(entries)
        self.revision += 1
        self.entries |= {key: Entry(value, self.revision, lease.number) for key, value in put.items()}
        return self.revision

    def watch(self, prefix, after):
        raise NotImplementedError

    async def grant(self, seconds):
        return self.lease

    async def close(self):
        pass


def put(entries, first=None):
    async def live():
        place = Place(**entries)
        mine = Registration(place, KEY, Scripted(None), VirtualClock(), RECORD.address)
        mine.revision = first or 0
        await mine.put(RECORD)
        return place.entries

    return run_virtual(live())


def test_a_new_record_is_put():
    assert put({})[KEY] == Entry(RECORD.pack(), 11, 7)


@pytest.mark.parametrize("old", [Entry(b"old", 5), Entry(b"old", 5, 7), Entry(RECORD.pack(), 5, 1)])
def test_a_record_of_no_lease_of_ours_or_of_our_address_is_taken_over_at_once(old):
    assert put({KEY: old})[KEY].value == RECORD.pack()


THEIRS = Entry(LeaderRecord("p0", "tcp://b:2").pack(), 5, 1)


def waited(gone_after):
    """Seconds that a process waits for its name, which another process holds for `gone_after`."""

    async def live():
        place, clock = Place(Scripted(None), **{KEY: THEIRS}), VirtualClock()
        asyncio.get_running_loop().call_later(gone_after, place.entries.pop, KEY)
        async with registered(place, KEY, 3.0, clock, RECORD.address) as mine:
            await mine.put(RECORD)
            assert place.entries[KEY].value == RECORD.pack()
            return clock.now()

    return run_virtual(live())


def test_a_process_waits_for_its_name_until_the_lease_of_a_former_process_ends():
    assert 2.5 <= waited(gone_after=2.5) < 3.0


def test_a_process_ends_where_another_one_keeps_its_name():
    with pytest.raises(NameTaken, match=r"the name p0 \(at tcp://b:2, still there after 6.* s\); end it, or .* --name"):
        waited(gone_after=60.0)


def test_two_processes_that_find_the_name_free_at_once_do_not_both_have_it():
    """The second finds the first one's record when it writes its own."""

    async def live():
        place, clock = Place(Scripted(None)), VirtualClock()
        async with registered(place, KEY, 3.0, clock, RECORD.address) as mine:
            place.entries[KEY] = THEIRS
            await mine.put(RECORD)

    with pytest.raises(NameTaken):
        run_virtual(live())


@pytest.mark.parametrize("entries", [{}, {KEY: Entry(b"theirs", 9, 8)}])
def test_a_lost_key_is_a_lost_lease(entries):
    with pytest.raises(LeaseLost):
        put(entries, first=5)


def held(lease, seconds):
    async def live():
        async with registered(Place(lease), KEY, 3.0, VirtualClock()):
            await VirtualClock().sleep(seconds)
        return asyncio.get_running_loop().time()

    return run_virtual(live())


def test_a_lease_is_renewed_three_times_in_its_time():
    lease = Scripted(None)
    assert held(lease, 6.5) == 6.5 and lease.renewed == 6


def test_a_process_that_is_cut_off_continues_and_retries():
    lease = Scripted(None, CutOff(), CutOff(), None)
    assert held(lease, 6.5) == 6.5 and lease.renewed == 6


def test_a_lost_lease_ends_the_block():
    lease = Scripted(None, LeaseLost("gone"))
    with pytest.raises(LeaseLost, match="gone"):
        held(lease, 100.0)
    assert lease.renewed == 2
