"""The journal of a directory: the transitions of its state machine on a disk.

    the magic line      records, one after the other
    MAGIC               length 4 | its CRC-32 4 | the payload's CRC-32 4 | payload: msgpack list of transitions and END

The server replies only when the transitions before its reply are durable. Numbers are big-endian. One write is one
record of all transitions that waited for it, so only the last record can be torn: its beginning is there, followed by
nothing or by zeros, or a sector of it has only zeros. A torn record is cut off at the next start; any other damage is
refused. A file that has grown beyond its limit is replaced by one record that restores the same state.
"""

import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import msgpack

from pipelined.aio.tasks import Notifier
from pipelined.errors import UsageError
from pipelined.membership.directory.server.disk import Disk, FileDisk
from pipelined.membership.directory.server.state_machine import StateMachine, Transition
from pipelined.process.reporting.events import warn
from transports import Closed

MAGIC = b"pipelined directory journal 1\n"
_LENGTH, _HEAD = struct.Struct("!I"), struct.Struct("!III")
END = None
"""The last item of a record. Its one byte is not zero, so a whole record never ends as a torn one may."""
SECTOR_BYTES = 512
"""What a disk writes at once. A file system may write later sectors of a record first, and read lost ones as zeros."""
MIN_COMPACTED = 4 << 20
"""Bytes that a journal may reach before its first compaction; later the limit is twice the compacted size, if more."""


class NoDisk(Disk):
    """A disk that keeps nothing."""

    async def load(self) -> bytes:
        return b""

    async def append(self, data: bytes) -> None:
        pass

    async def truncate(self, size: int) -> None:
        pass

    async def replace(self, make: Callable[[], bytes]) -> int:
        return 0

    async def close(self) -> None:
        pass


class Journal:
    """The journal of one state machine.

    Args:
        disk: used by this journal alone.
        name: of the file, for messages.
    """

    def __init__(self, disk: Disk, name: str):
        self._disk, self._name = disk, name
        self._size = self._size_limit = 0
        self._transitions: list[Transition] = []
        self._queued_count = self._written_count = 0
        self._has_queued = Notifier()
        self._has_written = Notifier()
        self._ended = False

    async def recover(self, machine: StateMachine) -> None:
        """Replay the journal into an empty state machine, or begin the journal of a new one.

        Raises:
            UsageError: the file is not a journal, or is damaged before its end.
            JournalError: it cannot be written.
        """
        data = await self._disk.load()
        transitions, end = _read_records(data, self._name)
        if end < len(data):
            fact = "its last write was not complete; it is discarded, and no client was acknowledged"
            warn("journal torn", file=self._name, bytes=len(data) - end, at=end, why=fact)
            await self._disk.truncate(end)
        try:
            machine.replay(transitions)
        except Exception as error:
            raise UsageError(f"{self._name} contains an invalid operation; restore it from a copy") from error
        self._size = end
        self._size_limit = max(MIN_COMPACTED, 2 * end)
        if not transitions:
            await self._compact(machine)

    def queue(self, transitions: Sequence[Transition]) -> None:
        """Queue transitions for the next write."""
        if transitions:
            self._transitions.extend(transitions)
            self._queued_count += len(transitions)
            self._has_queued.notify_all()

    async def wait_durable(self) -> None:
        """Wait until all transitions queued so far are on the disk. Raises Closed: `write` has ended before that."""
        goal = self._queued_count
        while self._written_count < goal:
            if self._ended:
                raise Closed(f"{self._name} is not written any more")
            await self._has_written.wait()

    async def write(self, machine: StateMachine) -> NoReturn:
        """Write queued transitions until cancelled. Raises JournalError."""
        try:
            while True:
                if not self._transitions:
                    await self._has_queued.wait()
                await (self._append() if self._size <= self._size_limit else self._compact(machine))
        finally:
            self._ended = True
            self._has_written.notify_all()

    async def close(self) -> None:
        await self._disk.close()

    async def _append(self) -> None:
        """Write all queued transitions as one record."""
        transitions, self._transitions, goal = self._transitions, [], self._queued_count
        data = _record(transitions)
        await self._disk.append(data)
        self._size += len(data)
        self._set_written(goal)

    async def _compact(self, machine: StateMachine) -> None:
        """Replace the file by a snapshot of the machine, which includes the queued transitions."""
        snapshot = machine.snapshot()
        goal = self._queued_count
        self._transitions = []
        self._size = await self._disk.replace(lambda: MAGIC + _record(snapshot))
        self._size_limit = max(MIN_COMPACTED, 2 * self._size)
        self._set_written(goal)

    def _set_written(self, goal: int) -> None:
        self._written_count = goal
        self._has_written.notify_all()


def _record(transitions: Sequence[Transition]) -> bytes:
    payload = msgpack.packb([*transitions, END])
    length = _LENGTH.pack(len(payload))
    return _HEAD.pack(len(payload), zlib.crc32(length), zlib.crc32(payload)) + payload


def _read_records(data: bytes, name: str) -> tuple[list[Transition], int]:
    """All transitions, and the offset at which the last whole record ends."""
    if not data.startswith(MAGIC):
        if MAGIC.startswith(data):
            return [], 0
        fact = f"{name} is no journal of a directory of this version (it begins with {data[:16]!r})"
        raise UsageError(f"{fact}; name another file")
    transitions = list[Transition]()
    end = len(MAGIC)
    while end < len(data):
        remaining = memoryview(data)[end:]
        payload = _payload(remaining)
        if payload is None:
            if _is_torn(remaining):
                break
            fact = f"{name} is damaged before its end (at: {end}, bytes: {len(data)})"
            raise UsageError(f"{fact}; restore it from a copy")
        transitions += [item for item in msgpack.unpackb(payload, strict_map_key=False) if item is not END]
        end += _HEAD.size + len(payload)
    return transitions, end


def _checked_length(remaining: memoryview) -> int | None:
    """The payload length of the first record; None if its checksum is wrong."""
    length, checksum, _ = _HEAD.unpack(remaining[: _HEAD.size]) if len(remaining) >= _HEAD.size else (0, 0, 0)
    return length if zlib.crc32(remaining[: _LENGTH.size]) == checksum else None


def _payload(remaining: memoryview) -> memoryview | None:
    """The payload of the first record; None if the record is not whole."""
    length = _checked_length(remaining)
    if length is None or len(remaining) < _HEAD.size + length:
        return None
    payload = remaining[_HEAD.size : _HEAD.size + length]
    return payload if zlib.crc32(payload) == _HEAD.unpack(remaining[: _HEAD.size])[2] else None


def _is_torn(remaining: memoryview) -> bool:
    """Whether the first record, which is not whole, can be a torn last write.

    Its length is lost and only zeros follow, or is beyond the end of the file, or reaches the end and bytes are lost.
    """
    length = _checked_length(remaining)
    if length is None:
        return not any(remaining[_HEAD.size :])
    end = _HEAD.size + length
    return end > len(remaining) or (
        end == len(remaining) and (not remaining[-1] or bytes(SECTOR_BYTES) in remaining.tobytes())
    )


def disk_of(journal: "str | Path | Disk | None") -> Disk:
    """The disk for a `journal` argument: a path is a `FileDisk`, None is `NoDisk`, a `Disk` is itself."""
    if journal is None:
        return NoDisk()
    return journal if isinstance(journal, Disk) else FileDisk(journal)
