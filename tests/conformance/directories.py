"""What every directory keeps, as small named clauses over two of its clients."""

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import pytest

from pipelined.aio.clock import Clock
from pipelined.membership.directory import Change, Conflict, CutOff, Directory, Entry, LeaseLost
from transports import Nursery, TransportError
from transports.rpc import Endpoint

EVERYWHERE = {}
WHERE_CONNECTIONS_TELL = {}


@dataclass
class Party:
    """One client.

    Args:
        endpoint: by which it asks, if by one.
        clock: by which it lives.
        lease_s: a short lease that its directory has.
    """

    directory: Directory
    endpoint: Endpoint | None
    clock: Clock
    lease_s: float


@asynccontextmanager
async def kept(directory, seconds, clock):
    """A lease that is renewed while the block runs, and revoked after it; the block is cancelled when it is lost."""
    lease = await directory.grant(seconds)
    try:
        async with Nursery() as tasks:
            keeping = tasks.create_task(lease.keep_alive(clock))
            yield lease
            keeping.cancel()
    finally:
        with suppress(CutOff, TransportError):
            await lease.revoke()


def clause(clauses):
    def keep_by_name(test):
        clauses[test.__name__] = test
        return test

    return keep_by_name


async def first(changes):
    """The next item of a watch."""
    return await anext(aiter(changes))


async def several(changes, count):
    """So many of the next changes of a watch."""
    told = []
    while len(told) < count:
        told += await first(changes)
    return told


@clause(EVERYWHERE)
async def what_was_put_is_read(one, other):
    revision = await one.directory.transact({}, {"a": b"1", "b/c": b"\x00\xff"})
    view = await other.directory.read()
    assert view.revision == revision
    assert dict(view.entries) == {"a": Entry(b"1", revision), "b/c": Entry(b"\x00\xff", revision)}


@clause(EVERYWHERE)
async def a_prefix_is_a_prefix_of_text_and_no_more(one, other):
    await one.directory.transact({}, {"a": b"", "ab": b"", "b": b"", "a\U0010ffff": b"", "ä": b""})
    assert set((await other.directory.read("a")).entries) == {"a", "ab", "a\U0010ffff"}
    assert set((await other.directory.read("c")).entries) == set()
    assert len((await other.directory.read()).entries) == 5


@clause(EVERYWHERE)
async def each_change_raises_the_revision_by_one(one, other):
    before = (await one.directory.read()).revision
    revisions = [await party.directory.transact({}, {"a": b"", "b": b""}) for party in (one, other, one)]
    assert revisions == [before + 1, before + 2, before + 3]


@clause(EVERYWHERE)
async def a_key_keeps_the_revision_of_its_own_last_change(one, other):
    earlier = await one.directory.transact({}, {"a": b"1", "b": b"1"})
    later = await one.directory.transact({}, {"b": b"2"})
    view = await other.directory.read()
    assert [view.entries[key].revision for key in "ab"] == [earlier, later]


@clause(EVERYWHERE)
async def what_is_as_expected_happens(one, other):
    first = await one.directory.transact({"a": 0}, {"a": b"1"})
    second = await other.directory.transact({"a": first, "never": 0}, {"a": b"2"})
    assert (await one.directory.read()).entries == {"a": Entry(b"2", second)}


@clause(EVERYWHERE)
async def what_is_not_as_expected_changes_nothing_and_says_what_is(one, other):
    revision = await one.directory.transact({}, {"a": b"1"})
    with pytest.raises(Conflict) as caught:
        await other.directory.transact({"a": 0, "b": 7, "c": 0}, {"a": b"2", "c": b"2"})
    assert caught.value.entries == {"a": Entry(b"1", revision), "b": None, "c": None}
    assert (await other.directory.read()).entries == {"a": Entry(b"1", revision)}


@clause(EVERYWHERE)
async def what_is_deleted_is_gone_and_need_not_have_been(one, other):
    revision = await one.directory.transact({}, {"a": b"", "b": b""})
    await other.directory.transact({"a": revision}, {"c": b""}, delete=["a", "never"])
    assert set((await one.directory.read()).entries) == {"b", "c"}
    await one.directory.transact({"a": 0}, {"a": b"again"})


@clause(EVERYWHERE)
async def a_transaction_without_changes_only_compares(one, other):
    revision = await one.directory.transact({}, {"a": b""})
    assert await other.directory.transact({"a": revision}, {}) == revision
    with pytest.raises(Conflict):
        await other.directory.transact({"a": 0}, {})


@clause(EVERYWHERE)
async def one_of_many_concurrent_claims_succeeds(one, other):
    async def claim(party, who):
        try:
            return bool(await party.directory.transact({"throne": 0}, {"throne": b"%d" % who}))
        except Conflict:
            return False

    async with asyncio.TaskGroup() as tasks:
        claims = [tasks.create_task(claim(party, who)) for who, party in enumerate((one, other) * 4)]
    won = [who for who, claimed in enumerate(claims) if claimed.result()]
    assert len(won) == 1
    assert (await one.directory.read()).entries["throne"].value == b"%d" % won[0]


@clause(EVERYWHERE)
async def no_increment_is_lost(one, other):
    async def count(party, times):
        while times:
            entry = (await party.directory.read("n")).entries.get("n", Entry(b"0", 0))
            try:
                await party.directory.transact({"n": entry.revision}, {"n": b"%d" % (int(entry.value) + 1)})
            except Conflict:
                continue
            times -= 1

    async with asyncio.TaskGroup() as tasks:
        for party in (one, other):
            tasks.create_task(count(party, 8))
    assert (await one.directory.read("n")).entries["n"].value == b"16"


@clause(EVERYWHERE)
async def a_watch_tells_all_after_its_revision_in_order(one, other):
    before = await one.directory.transact({}, {"w/a": b"0"})
    second = await one.directory.transact({}, {"w/a": b"1", "w/b": b"1", "x": b""})
    third = await other.directory.transact({}, {"x": b"2"}, delete=["w/a"])
    changes = other.directory.watch("w/", before)
    told = await several(changes, 3)
    assert sorted(told[:2]) == [Change("w/a", Entry(b"1", second), second), Change("w/b", Entry(b"1", second), second)]
    assert told[2:] == [Change("w/a", None, third)]
    await changes.aclose()


@clause(EVERYWHERE)
async def several_prefixes_are_read_at_one_revision(one, other):
    revision = await one.directory.transact({}, {"a/1": b"", "b": b"", "b/2": b"", "c/3": b"", "ba": b""})
    view = await other.directory.read(("b/", "a/", "absent/", "ba"))
    assert set(view.entries) == {"a/1", "b/2", "ba"} and view.revision == revision


@clause(EVERYWHERE)
async def several_prefixes_are_watched_as_one(one, other):
    """What a watcher knows after each item is what the directory held below the prefixes at that revision."""
    truth = {0: {}}
    state = {}

    async def write(put, delete=()):
        state.update(put)
        for key in delete:
            del state[key]
        revision = await one.directory.transact({}, put, delete)
        truth[revision] = {key: value for key, value in state.items() if key.startswith(("w/", "v/", "u"))}
        return revision

    before = await write({"w/a": b"0", "x/y": b"0"})
    changes, known = other.directory.watch(("w/", "v/", "u"), before), {"w/a": b"0"}
    async with asyncio.TaskGroup() as tasks:
        seen = tasks.create_task(first(changes))
        await write({"x/y": b"1"})
        await write({"v/b": b"1", "w/a": b"1"})
        await write({"u": b"2"}, ["w/a"])
        last = await write({"w/c": b"3", "x/z": b"3"}, ["v/b"])
    told = seen.result()
    while True:
        known.update((change.key, change.entry.value) for change in told if change.entry)
        for change in told:
            if change.entry is None:
                known.pop(change.key, None)
        assert known in [truth[revision] for revision in truth if revision >= told[-1].revision]
        if told[-1].revision >= last:
            break
        told = await first(changes)
    assert known == truth[last] == {"u": b"2", "w/c": b"3"}
    await changes.aclose()


@clause(EVERYWHERE)
async def a_watch_waits_for_what_comes(one, other):
    revision = (await one.directory.read()).revision
    changes = other.directory.watch("w/", revision)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(first(changes))
        await other.directory.read()
        await one.directory.transact({}, {"elsewhere": b""})
        assert not waiting.done()
        revision = await one.directory.transact({}, {"w/a": b"1"})
    assert waiting.result() == [Change("w/a", Entry(b"1", revision), revision)]
    await changes.aclose()


@clause(EVERYWHERE)
async def a_lease_that_is_revoked_takes_its_keys_along_at_once(one, other):
    lease = await one.directory.grant(60.0)
    revision = await one.directory.transact({}, {"m/a": b"", "m/b": b""}, lease=lease)
    await one.directory.transact({}, {"m/c": b""})
    assert (await other.directory.read("m/a")).entries["m/a"] == Entry(b"", revision, lease.number)
    changes = other.directory.watch("m/", revision + 1)
    await lease.revoke()
    gone = await first(changes)
    assert [(change.key, change.entry) for change in gone] == [("m/a", None), ("m/b", None)]
    assert set((await other.directory.read("m/")).entries) == {"m/c"}
    await changes.aclose()


@clause(EVERYWHERE)
async def a_lease_that_is_gone_can_do_nothing(one, other):
    lease = await one.directory.grant(60.0)
    await lease.revoke()
    await lease.revoke()
    with pytest.raises(LeaseLost):
        await lease.renew()
    with pytest.raises(LeaseLost):
        await one.directory.transact({}, {"a": b""}, lease=lease)
    assert (await other.directory.read()).entries == {}


@clause(EVERYWHERE)
async def a_later_lease_has_a_greater_number(one, other):
    leases = [await party.directory.grant(60.0) for party in (one, other, one, other)]
    numbers = [lease.number for lease in leases]
    assert numbers == sorted(set(numbers))
    for lease in leases:
        await lease.revoke()


@clause(EVERYWHERE)
async def a_key_is_bound_to_the_lease_of_its_last_put_alone(one, other):
    first, second = await one.directory.grant(60.0), await other.directory.grant(60.0)
    await one.directory.transact({}, {"a": b"", "b": b"", "c": b""}, lease=first)
    await other.directory.transact({}, {"a": b""}, lease=second)
    await other.directory.transact({}, {"b": b""})
    await first.revoke()
    assert set((await one.directory.read()).entries) == {"a", "b"}
    await second.revoke()
    assert set((await one.directory.read()).entries) == {"b"}


@clause(EVERYWHERE)
async def a_lease_expires_without_renewal(one, other):
    start = one.clock.now()
    lease = await one.directory.grant(one.lease_s)
    revision = await one.directory.transact({}, {"a": b""}, lease=lease)
    assert [change.entry for change in await first(other.directory.watch("a", revision))] == [None]
    assert one.clock.now() - start >= lease.seconds
    with pytest.raises(LeaseLost):
        await lease.renew()


@clause(EVERYWHERE)
async def a_kept_lease_lives_on_and_ends_with_its_scope(one, other):
    async with kept(one.directory, one.lease_s, one.clock) as lease:
        revision = await one.directory.transact({}, {"a": b""}, lease=lease)
        await one.clock.sleep(1.5 * lease.seconds)
        assert set((await other.directory.read()).entries) == {"a"}
    assert (await other.directory.read()).revision == revision + 1
    assert (await other.directory.read()).entries == {}


@clause(EVERYWHERE)
async def the_holder_of_a_lease_learns_of_its_loss(one, other):
    with pytest.raises(LeaseLost):
        async with kept(one.directory, one.lease_s, one.clock) as lease:
            await lease.revoke()
            await asyncio.get_running_loop().create_future()


@clause(EVERYWHERE)
async def what_is_beyond_the_limits_is_refused_with_both_numbers(one, other):
    for key, value, fact in [
        ("k" * 513, b"", r"bytes: 513, most: 512"),
        ("", b"", r"characters: 0"),
        ("k", b"v" * (1 + (256 << 10)), r"bytes: 262,145, most: 262,144"),
        ("k", "text", r"type: str"),
    ]:
        with pytest.raises(ValueError, match=fact):
            await one.directory.transact({}, {key: value})
    with pytest.raises(ValueError, match=r"keys: 101, most: 100"):
        await one.directory.transact({}, {str(n): b"" for n in range(101)})
    with pytest.raises(ValueError, match=r"put or deleted once"):
        await one.directory.transact({}, {"a": b""}, delete=["a"])
    with pytest.raises(ValueError, match=r"seconds: 0"):
        await one.directory.grant(0)
    await one.directory.transact({}, {"k" * 512: b"v" * (256 << 10)})
    assert len((await other.directory.read()).entries) == 1


@clause(WHERE_CONNECTIONS_TELL)
async def leases_end_soon_after_their_holder_disconnects(one, other):
    lease = await one.directory.grant(600.0)
    revision = await one.directory.transact({}, {"a": b""}, lease=lease)
    changes = other.directory.watch("a", revision)
    start = other.clock.now()
    await one.endpoint.close()
    assert [change.entry for change in await first(changes)] == [None]
    assert other.clock.now() - start < 3.0
