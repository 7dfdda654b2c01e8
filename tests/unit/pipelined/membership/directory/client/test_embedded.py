"""The embedded directory and its clients when processes die, stop and come back, on the virtual clock and network."""

import asyncio
from contextlib import asynccontextmanager, suppress

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.harness.memory_disk import MemoryDisk
from pipelined.aio.clock import VirtualClock, run_virtual
from pipelined.aio.tasks import with_timeout
from pipelined.membership.directory import (
    Conflict,
    CutOff,
    DirectoryLimits,
    DirectoryRefusal,
    EmbeddedDirectory,
    Entry,
    Full,
    JournalError,
    messages,
    serve_directory,
)
from tests.conformance.directories import kept
from transports.rpc import Rejected
from transports.rpc.virtual.network import VirtualNetwork

pytestmark = pytest.mark.virtual

SERVER = "virtual://directory"


class World:
    """A directory that can be killed, and parties that ask it."""

    def __init__(self, seed=0, journal=None, limits=None, **network):
        self.network, self.clock = VirtualNetwork(seed, **network), VirtualClock()
        self.journal, self.limits = journal, limits
        self.lives = []

    def start(self):
        """Begin the directory, anew if it was killed."""
        self.end = self.network.endpoint("directory")
        clock = self.network.clock("directory")
        serving = serve_directory(self.end, clock, self.journal, self.limits)
        self.lives.append(self.network.run("directory", serving))

    def kill(self):
        self.network.kill("directory")

    async def restart(self, after=1.0):
        self.kill()
        await self.clock.sleep(after)
        self.start()

    def party(self, name, **options):
        """A client in a process of its own, and the clock there."""
        return EmbeddedDirectory(self.network.endpoint(name), SERVER, self.network.clock(name), **options)


@asynccontextmanager
async def opened(**options):
    """A world in which the directory runs."""
    world = World(**options)
    world.start()
    try:
        yield world
    finally:
        for life in world.lives:
            life.cancel()
        await asyncio.gather(*world.lives, return_exceptions=True)


def played(story, **options):
    """Run a story in a world of its own."""

    async def main():
        async with opened(**options) as world:
            await story(world)

    run_virtual(main())


async def gone_after(world, party, key, revision):
    """Seconds until a key is gone, as a party sees it."""
    start = world.clock.now()
    async for changes in party.watch(key, revision):
        if changes[-1].entry is None:
            return world.clock.now() - start


async def test_a_killed_holder_is_gone_well_before_its_lease():
    async with opened() as world:
        holder, other = world.party("holder"), world.party("other")
        lease = await holder.grant(60.0)
        revision = await holder.transact({}, {"peer": b""}, lease=lease)
        world.network.kill("holder")
        assert await gone_after(world, other, "peer", revision) < 0.5


@pytest.mark.parametrize("fault", ["freeze", "cut_off"])
async def test_a_silent_holder_is_gone_within_its_lease(fault):
    async with opened() as world:
        holder, other = world.party("holder"), world.party("other")
        lease = await holder.grant(3.0)
        revision = await holder.transact({}, {"peer": b""}, lease=lease)
        getattr(world.network, fault)("holder")
        assert 2.5 < await gone_after(world, other, "peer", revision) < 3.1


async def test_a_watch_receives_at_once_what_is_put_as_it_begins():
    """Both questions arrive together, the watch first."""

    async with opened() as world:
        party = world.party("one")
        revision = await party.transact({}, {"key": b"old"})
        async with asyncio.TaskGroup() as tasks:
            heard = tasks.create_task(anext(party.watch("key", revision)))
            tasks.create_task(party.transact({}, {"key": b"new"}))
            await heard
        assert world.clock.now() < 0.1


async def test_a_holder_reconnects_in_time():
    async with opened() as world:
        holder, other = world.party("holder"), world.party("other")
        async with kept(holder, 60.0, world.clock) as lease:
            await holder.transact({}, {"peer": b""}, lease=lease)
            for _ in range(5):
                world.network.reset("holder", "directory")
                await world.clock.sleep(5.0)
            assert set((await other.read()).entries) == {"peer"}


async def test_a_holder_that_replies_over_another_connection_keeps_its_leases():
    """The directory may see a connection break long after its holder has, which renewed in between."""

    async with opened() as world:
        holder, other = world.party("holder"), world.party("other")
        lease = await holder.grant(60.0)
        revision = await holder.transact({}, {"peer": b""}, lease=lease)
        for _ in range(3):
            world.network.reset("holder", "directory")
            await world.clock.sleep(1.0)  # no holder renews
        assert set((await other.read()).entries) == {"peer"}
        assert 58.5 < await gone_after(world, other, "peer", revision) < 60.1


async def test_a_restarted_holder_does_not_keep_its_former_leases():
    async with opened() as world:
        holder, other = world.party("holder"), world.party("other")
        lease = await holder.grant(60.0)
        revision = await holder.transact({}, {"peer": b""}, lease=lease)
        world.network.kill("holder")
        await world.party("holder").read()
        assert await gone_after(world, other, "peer", revision) < 0.5


async def test_a_restarted_directory_continues_and_so_do_its_clients():
    async with opened(journal=MemoryDisk()) as world:
        one, other = world.party("one"), world.party("other")
        numbers = []

        async def watch():
            async for changes in other.watch("", 0):
                numbers.extend(int(change.entry.value) for change in changes)
                if numbers[-1] == 29:
                    return

        async def count():
            for number in range(30):
                await one.transact({}, {"n": b"%d" % number})
                await world.clock.sleep(0.1)

        async with asyncio.TaskGroup() as tasks, kept(one, 2.0, world.clock):
            tasks.create_task(watch())
            counting = tasks.create_task(count())
            for _ in range(3):
                await world.clock.sleep(1.0)
                await world.restart(after=5.0)
            await counting
        assert numbers == list(range(30))


@settings(max_examples=50)
@given(moment=st.floats(0.0, 0.02), write=st.floats(0.0, 0.004), seed=st.integers(0, 5))
def test_a_request_happens_once_whenever_the_directory_is_killed(moment, write, seed):
    async def story(world):
        one = world.party("one")
        await one.transact({}, {"n": b"0"})

        async with asyncio.TaskGroup() as tasks:
            adding = [tasks.create_task(one.transact({}, {f"k{n}": b""})) for n in range(8)]
            await world.clock.sleep(moment)
            await world.restart()
        view = await one.read("k")
        assert view.revision == 9  # nothing was expected, so that what happened twice would show
        assert [view.entries[f"k{n}"].revision for n in range(8)] == [added.result() for added in adding]

    async def pause():
        await VirtualClock().sleep(write)

    played(story, journal=MemoryDisk(pause), seed=seed, jitter=5e-4)


FAULTS = st.sampled_from(["restart", "tear", "cut", "reset", "freeze", "freeze directory"])


@given(
    st.lists(st.tuples(st.floats(0.0, 2.0), FAULTS, st.sampled_from(["one", "other"])), max_size=6), st.integers(0, 9)
)
def test_no_fault_loses_or_doubles_an_increment(faults, seed):
    """Two clients count the same key up; each remembers what it was told."""

    async def count(party, told):
        while len(told) < 12:
            entry = (await party.read("n")).entries.get("n", Entry(b"0", 0))
            with suppress(Conflict):
                value = b"%d" % (int(entry.value) + 1)
                told[await party.transact({"n": entry.revision}, {"n": value})] = value

    async def befall(world, fault, name):
        network, clock = world.network, world.clock
        if fault == "restart":
            await world.restart()
        elif fault == "tear":
            world.kill()
            world.journal.data += bytes(8) if world.journal.data else b""  # what is replaced is never torn
            world.start()
        elif fault == "cut":
            network.cut(name, "directory")
            await clock.sleep(3.0)
            network.heal(name, "directory")
        elif fault == "reset":
            network.reset(name, "directory")
        else:
            frozen = "directory" if fault.endswith("directory") else name
            network.freeze(frozen)
            await clock.sleep(3.0)
            network.thaw(frozen)

    async def story(world):
        told = {name: {} for name in ("one", "other")}
        async with asyncio.TaskGroup() as tasks:
            for name, mine in told.items():
                tasks.create_task(count(world.party(name), mine))
            for pause, fault, name in faults:
                await world.clock.sleep(pause)
                await befall(world, fault, name)
        every = sorted((told["one"] | told["other"]).items())
        assert [value for _, value in every] == [b"%d" % n for n in range(1, 25)]

    async def pause():
        await VirtualClock().sleep(0.05)

    played(story, journal=MemoryDisk(pause), seed=seed, delay=0.02, jitter=0.01)


async def test_after_a_restart_a_lease_lives_its_whole_time_again():
    async with opened(journal=MemoryDisk()) as world:
        holder, other = world.party("holder"), world.party("other")
        lease = await holder.grant(3.0)
        revision = await holder.transact({}, {"peer": b""}, lease=lease)
        world.network.cut_off("holder")
        await world.clock.sleep(2.0)
        await world.restart(after=30.0)
        assert 2.9 < await gone_after(world, other, "peer", revision) < 3.1


async def test_a_directory_that_stood_still_ends_no_lease_for_that():
    async with opened() as world:
        holder, other = world.party("holder"), world.party("other")
        async with kept(holder, 3.0, world.clock) as lease:
            await holder.transact({}, {"peer": b""}, lease=lease)
            world.network.freeze("directory")
            await world.clock.sleep(20.0)
            world.network.thaw("directory")
            await world.clock.sleep(20.0)
            assert set((await other.read()).entries) == {"peer"}


async def test_a_client_without_a_reply_is_cut_off_after_its_time_out():
    async with opened() as world:
        one = world.party("one", patience=4.0)
        await one.read()
        for fault in (lambda: world.network.cut("one", "directory"), world.kill):
            fault()
            for call in (one.read, lambda: one.transact({}, {"a": b""}), lambda: anext(one.watch("", 0))):
                start = world.clock.now()
                with pytest.raises(CutOff, match=r"directory at virtual://directory does not reply \(seconds: 4"):
                    await call()
                assert 3.0 < world.clock.now() - start <= 4.1


async def test_a_cut_that_heals_within_patience_is_not_noticed():
    async with opened() as world:
        one = world.party("one")
        await one.read()
        world.network.cut("one", "directory")
        async with asyncio.TaskGroup() as tasks:
            asking = tasks.create_task(one.transact({}, {"a": b""}))
            await world.clock.sleep(20.0)
            world.network.heal("one", "directory")
        assert (await one.read()).revision == asking.result() == 1


async def test_a_client_may_be_there_before_its_directory():
    async with opened() as world:
        world.kill()
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(world.party("one").read())
            await world.clock.sleep(5.0)
            world.start()
        assert reading.result().entries == {}


async def test_a_directory_that_forgot_everything_is_not_taken_for_the_former():
    async with opened() as world:
        one = world.party("one")
        await one.transact({}, {"a": b""})
        await world.restart()
        for _ in range(2):
            names = r"its name: (\d+), the former one's: (?!\1)\d+\); give the directory its journal"
            with pytest.raises(DirectoryRefusal, match=rf"another directory replies .* \({names}"):
                await one.read()
        assert (await world.party("fresh").read()).entries == {}


async def test_a_forgotten_client_enters_again():
    """The outcome of one request is unknown, and its error says so; that of later requests is known."""

    async with opened(limits=DirectoryLimits(clients=2)) as world:
        mine = world.party("mine")
        seen = await mine.transact({}, {"key": b"mine"})
        for at in range(3):
            await world.party(f"passing{at}").transact({}, {f"key{at}": b"theirs"})
        with pytest.raises(CutOff, match="cannot say whether it happened"):
            await mine.transact({"key": seen}, {"key": b"again"})
        await mine.transact({"key": seen}, {"key": b"again"})
        assert (await mine.read("key")).entries["key"].value == b"again"


async def test_a_member_that_only_renews_its_lease_is_remembered_while_many_clients_come_and_write():
    async with opened(limits=DirectoryLimits(clients=2), journal=MemoryDisk()) as world:
        member = world.party("member")
        lease = await member.grant(5.0)
        for at in range(5):
            await world.party(f"passing{at}").transact({}, {f"key{at}": b"theirs"})
            await lease.renew()
        await member.transact({}, {"key": b"mine"}, lease=lease)
        await world.restart()
        for at in range(5, 10):
            await world.party(f"passing{at}").transact({}, {f"key{at}": b"theirs"})
        await member.transact({}, {"key": b"again"}, lease=lease)


async def test_a_client_of_a_former_directory_stays_cut_off():
    async with opened(limits=DirectoryLimits(clients=2)) as world:
        mine = world.party("mine")
        await mine.transact({}, {"key": b"mine"})
        for at in range(3):
            await world.party(f"passing{at}").transact({}, {f"key{at}": b"theirs"})
        with pytest.raises(CutOff, match="cannot say whether it happened"):
            await mine.transact({}, {"key": b"again"})
        await world.restart()
        with pytest.raises(CutOff, match="another directory"):
            await mine.transact({}, {"key": b"again"})


async def test_a_closed_client_asks_nothing_more():
    async with opened() as world:
        one = world.party("one")
        await one.transact({}, {"a": b""})
        await one.close()
        with pytest.raises(CutOff, match=r"was closed here"):
            await one.read()


async def test_what_the_directory_holds_is_bounded():
    async with opened(limits=DirectoryLimits(entries=2, leases=1)) as world:
        one = world.party("one")
        with pytest.raises(Full, match=r"keys: 3, most: 2"):
            await one.transact({}, dict.fromkeys("abc", b""))
        await one.grant(1.0)
        with pytest.raises(Full, match=r"leases: 1, most: 1"):
            await one.grant(1.0)


class FillingDisk(MemoryDisk):
    """Has room until it is full."""

    full = False

    async def append(self, data):
        if self.full:
            raise JournalError("no room")
        await super().append(data)


async def test_a_full_disk_ends_the_directory_before_any_unwritten_reply():
    async with opened(journal=FillingDisk()) as world:
        one = world.party("one", patience=2.0)
        revision = await one.transact({}, {"a": b"1"})
        world.journal.full = True
        with pytest.raises(CutOff):
            await one.transact({}, {"a": b"2"})
        with pytest.raises(JournalError, match="no room"):
            await world.lives[0]
        world.journal.full = False
        await world.restart()
        assert (await world.party("fresh").read()).entries == {"a": Entry(b"1", revision)}


async def test_many_changes_are_sent_in_several_replies():
    async with opened() as world:
        one = world.party("one")
        for number in range(20):
            await one.transact({}, {f"k{number}": bytes(200_000)})
        watching, told = one.watch("", 0), []
        while len(told) < 20:
            told += await anext(watching)
        assert [change.revision for change in told] == list(range(1, 21))


def message(**told):
    """One block, from the first client of a directory in its first life."""
    return (msgpack.packb({"name": 1, "client": 1, "number": 0, "settled": 0, "grace": 1.0, **told}),)


LETTERS = [
    (messages.Read.topic, (), "a message is one block (blocks: 0)"),
    (messages.Read.topic, (b"\xc1",), "not a message"),
    (messages.Read.topic, (b"\x91" * 1000,), "not a message"),
    (
        messages.Read.topic,
        (b"\xdc\x00\x40" + b"\x90" * 64,),
        "not a message: ValueError too many lists and maps (most: 4)",
    ),
    (
        messages.Read.topic,
        (b"\xdc\xff\xff" + bytes(65535),),
        "not a message: ValueError 65535 exceeds max_array_len(100)",
    ),
    (messages.Read.topic, (b"\x81\x90\x01",), "not a message: TypeError"),
    (messages.Read.topic, (msgpack.packb([1]),), "a message is a map (it is: list)"),
    (messages.Read.topic, (msgpack.packb({}),), "no whole number"),
    (messages.Read.topic, message(prefix=7), "prefixes are text, or a tuple of such (type: int)"),
    (messages.Read.topic, message(prefix=["a", 7]), "a key is text (type: int)"),
    (messages.Read.topic, message(prefix=[]), "prefixes: 0, most: 16"),
    (messages.Watch.topic, message(prefix=["k"] * 17, after=0, wait=1.0), "prefixes: 17, most: 16"),
    (messages.Read.topic, message(prefix="k" * 513), "bytes: 513, most: 512"),
    (messages.Watch.topic, message(prefix="", after=-1), "no whole number"),
    (messages.Watch.topic, message(prefix="", after=0, wait=float("nan")), "no length of time"),
    (messages.Grant.topic, message(seconds=1e9), "seconds: 1000000000.0"),
    (messages.Grant.topic, message(seconds=1.0, number=-1), "no whole number"),
    (messages.Grant.topic, message(seconds=1.0, grace=float("inf")), "grace is no length of time"),
    (messages.Renew.topic, message(lease=True), "no whole number"),
    (messages.Transact.topic, message(), "expect is no dict (type: NoneType)"),
    (messages.Transact.topic, message(expect={}, put={1: b""}, delete=[], lease=0), "a key is text"),
    (
        messages.Transact.topic,
        message(expect={"a": "1"}, put={}, delete=[], lease=0),
        "the revision expected of 'a' is no whole number",
    ),
]


@pytest.mark.parametrize("topic, blocks, why", LETTERS)
async def test_a_letter_that_says_nothing_is_refused_and_changes_nothing(topic, blocks, why):
    async with opened() as world:
        stranger = world.network.endpoint("stranger")
        await stranger.request(SERVER, messages.Enter.topic, msgpack.packb({}))
        with pytest.raises(Rejected) as caught:
            await stranger.request(SERVER, topic, *blocks)
        assert caught.value.reason == "bad request"
        assert why in caught.value.facts["why"]
        assert (await world.party("one").read()).revision == 0
        assert not world.end.failed.done()


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = [
    "name",
    "client",
    "number",
    "settled",
    "prefix",
    "after",
    "wait",
    "expect",
    "put",
    "delete",
    "lease",
    "seconds",
]
TOPICS = [
    messages.Enter.topic,
    messages.Read.topic,
    messages.Watch.topic,
    messages.Transact.topic,
    messages.Grant.topic,
    messages.Renew.topic,
    messages.Revoke.topic,
]
ODD = st.binary(max_size=64) | st.dictionaries(st.sampled_from(FIELDS), PLAIN | st.just(1), min_size=3).map(
    msgpack.packb
)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.sampled_from(TOPICS), ODD), max_size=20))
def test_no_letter_brings_a_directory_down(odd):
    async def story(world):
        stranger, one = world.network.endpoint("stranger"), world.party("one")
        revision = await one.transact({}, {"a": b""})
        for topic, block in odd:
            with suppress(Rejected, TimeoutError):
                await with_timeout(world.clock, 1.0, stranger.request(SERVER, topic, block))
        assert not world.end.failed.done()
        assert (await one.read("a")).entries == {"a": Entry(b"", revision)}

    played(story)


async def test_a_letter_beyond_the_limits_takes_no_memory():
    async with opened() as world:
        stranger = world.network.endpoint("stranger")
        with pytest.raises(Rejected) as caught:
            await stranger.request(SERVER, messages.Transact.topic, bytes(4 << 20))
        assert caught.value.reason == "too large"
