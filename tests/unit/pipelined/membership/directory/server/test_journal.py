"""What is on a disk after a crash makes the same machine, and what is no journal is refused."""

import asyncio
import errno
import os

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.harness.memory_disk import MemoryDisk
from pipelined.errors import UsageError
from pipelined.membership.directory import JournalError
from pipelined.membership.directory.messages import RequestId
from pipelined.membership.directory.server import journal
from pipelined.membership.directory.server.disk import FileDisk
from pipelined.membership.directory.server.journal import MAGIC, Journal
from pipelined.membership.directory.server.state_machine import StateMachine
from pipelined.process.reporting import events
from transports import Closed


class CountingDisk(MemoryDisk):
    """Counts its writes, of which each takes some turns of the loop."""

    def __init__(self):
        super().__init__(self.pause)
        self.writes = 0

    async def pause(self):
        self.writes += 1
        for _ in range(3):
            await asyncio.sleep(0)


class FullDisk(MemoryDisk):
    """Has room for the first write alone."""

    async def append(self, data):
        raise JournalError("no room")


class Writer:
    """A machine with journaled transitions."""

    def __init__(self, disk):
        self.machine, self.journal = StateMachine(7), Journal(disk, "the file")
        self.numbers = 0

    async def __aenter__(self):
        await self.journal.recover(self.machine)
        self.client = self.machine.enter()
        self.writing = asyncio.create_task(self.journal.write(self.machine))
        return self

    async def __aexit__(self, *exc):
        self.writing.cancel()
        await asyncio.wait([self.writing])
        await self.journal.close()

    async def put(self, key, value=b""):
        self.numbers += 1
        self.machine.transact(RequestId(self.client, self.numbers, self.numbers), {}, {key: value})
        self.journal.queue(self.machine.transitions)
        self.machine.transitions.clear()
        await self.journal.wait_durable()


async def recovered(disk):
    """The machine that is on a disk."""
    machine, journal = StateMachine(0), Journal(disk, "the file")
    await journal.recover(machine)
    await journal.close()
    return machine


def copied(disk):
    """Another disk with the same on it."""
    copy = MemoryDisk()
    copy.data = disk.data
    return copy


async def written(disk, keys):
    async with Writer(disk) as writer:
        for key in keys:
            await writer.put(key)
    return writer.machine


async def test_a_restarted_machine_is_the_same(tmp_path):
    before = await written(FileDisk(tmp_path / "journal"), ["a", "b", "a"])
    after = await recovered(FileDisk(tmp_path / "journal"))
    assert after.snapshot() == before.snapshot()
    assert after.name == 7 and after.revision == 3
    machine = await written(FileDisk(tmp_path / "journal"), ["c"])
    assert set(machine.read("").entries) == {"a", "b", "c"}


async def test_what_is_answered_is_written_by_then():
    disk = CountingDisk()
    async with Writer(disk) as writer:
        await writer.put("a")
        assert set((await recovered(copied(disk))).read("").entries) == {"a"}


async def test_waiting_requests_share_a_write():
    disk = CountingDisk()
    async with Writer(disk) as writer, asyncio.TaskGroup() as tasks:
        before = disk.writes
        for key in "abcdefgh":
            tasks.create_task(writer.put(key))
    assert disk.writes - before == 1


async def test_a_grown_journal_is_made_anew_and_stays_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "MIN_COMPACTED", 2000)
    disk = FileDisk(tmp_path / "journal")
    machine = await written(disk, ["a"] * 100)
    assert (tmp_path / "journal").stat().st_size < 100 * len(MAGIC)
    assert (await recovered(FileDisk(tmp_path / "journal"))).read("") == machine.read("")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal", "journal.lock"]


@given(st.data())
def test_a_torn_write_is_cut_off_and_what_was_answered_stays(data):
    async def main():
        disk = MemoryDisk()
        await written(disk, ["a", "b"])
        whole = disk.data
        await written(disk, ["c"])
        tail = disk.data[len(whole) :]
        length = data.draw(st.integers(0, len(tail) - 1))
        zeros = data.draw(st.integers(0, len(tail) - length)) if length else data.draw(st.integers(0, 100))
        torn = whole + tail[:length] + bytes(zeros)
        if torn == disk.data:
            return
        disk.data = torn
        events._events.clear()
        machine = await recovered(disk)
        assert set(machine.read("").entries) == {"a", "b"}
        told = [(event.kind, event.facts["bytes"], event.facts["at"]) for event in events.recent()]
        assert told == [("journal torn", len(torn) - len(whole), len(whole))] * (torn != whole)
        assert disk.data == whole

    asyncio.run(main())


async def test_a_torn_write_may_have_lost_a_sector_before_its_end():
    """A file system may write the last sectors of a file before those in front of them."""
    disk = MemoryDisk()
    await written(disk, ["a"])
    whole = disk.data
    await written(disk, ["b" * 3000])
    assert disk.data[-1]
    disk.data = disk.data[: len(whole) + 900] + bytes(512) + disk.data[len(whole) + 1412 :]
    assert set((await recovered(disk)).read("").entries) == {"a"}
    assert disk.data == whole


@given(st.data())
def test_damage_of_a_whole_record_is_never_taken_for_a_torn_write(data):
    async def main():
        disk = MemoryDisk()
        await written(disk, ["a"])
        await written(disk, ["b"])
        at = data.draw(st.integers(0, len(disk.data) - 1))
        bad = bytearray(disk.data)
        bad[at] ^= data.draw(st.integers(1, 255))
        assume(bad[-1])  # zeros at the end may be those of a torn write
        disk.data = bytes(bad)
        with pytest.raises(UsageError):
            await recovered(disk)
        assert disk.data == bytes(bad)

    asyncio.run(main())


@pytest.mark.parametrize("foreign", [b"PK\x03\x04", MAGIC.replace(b"1", b"2") + b"more", MAGIC[:-1] + b"x"])
def test_a_foreign_file_is_left_alone(tmp_path, foreign):
    path = tmp_path / "journal"
    path.write_bytes(foreign)
    with pytest.raises(UsageError, match=r"no journal of a directory of this version.*name another file"):
        asyncio.run(recovered(FileDisk(path)))
    assert path.read_bytes() == foreign


@pytest.mark.parametrize("name", ["journal", "link"])
async def test_a_file_has_one_writer_by_whichever_path(tmp_path, name):
    (tmp_path / "link").symlink_to("journal")
    async with Writer(FileDisk(tmp_path / "journal")):
        with pytest.raises(UsageError, match=r"another process writes"):
            await recovered(FileDisk(tmp_path / name))
    await recovered(FileDisk(tmp_path / name))


async def test_a_symbolic_link_to_a_journal_stays_one(tmp_path):
    (tmp_path / "link").symlink_to("journal")
    before = await written(FileDisk(tmp_path / "link"), ["a"])
    after = await recovered(FileDisk(tmp_path / "journal"))
    assert after.read("") == before.read("") and (tmp_path / "link").is_symlink()


def test_a_symbolic_link_to_itself_is_refused(tmp_path):
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(UsageError, match=r"cannot open the journal .*link \("):
        asyncio.run(recovered(FileDisk(tmp_path / "link")))


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"cannot open the journal .*nowhere/journal \(No such file"):
        asyncio.run(recovered(FileDisk(tmp_path / "nowhere" / "journal")))


async def test_a_failing_journal_ends_the_waiting_requests():
    async with Writer(FullDisk()) as writer:
        with pytest.raises(Closed, match=r"the file is not written any more"):
            await writer.put("a")
        with pytest.raises(JournalError, match=r"no room"):
            await writer.writing


async def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def no_room(file, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with Writer(FileDisk(tmp_path / "journal")) as writer:
        monkeypatch.setattr(os, "write", no_room)
        with pytest.raises(Closed):
            await writer.put("a")
        with pytest.raises(JournalError, match=r"journal \(No space left on device\); free disk space"):
            await writer.writing
