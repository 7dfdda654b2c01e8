"""The disk that a journal is written to: a file. Benchmarks and tests have one in memory.

When a method returns, its effect survives a crash. No method blocks the event loop.
"""

import asyncio
import fcntl
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pipelined.errors import UsageError

T = TypeVar("T")


class JournalError(Exception):
    """The journal cannot be written; it holds everything that was replied before."""


class Disk(ABC):
    """One file that is appended to, and sometimes replaced whole. Call one method at a time."""

    @abstractmethod
    async def load(self) -> bytes:
        """Lock the disk against other processes, and read all of it. Raises UsageError."""

    @abstractmethod
    async def append(self, data: bytes) -> None:
        """Write at the end. Raises JournalError; a part may have been written."""

    @abstractmethod
    async def truncate(self, size: int) -> None:
        """Truncate to this many bytes. Raises JournalError."""

    @abstractmethod
    async def replace(self, make: Callable[[], bytes]) -> int:
        """Replace the whole content atomically with the result of `make`; returns its size. Raises JournalError."""

    @abstractmethod
    async def close(self) -> None:
        """Close and unlock the disk."""


class FileDisk(Disk):
    """A file. PATH.lock is locked by the process that writes; PATH.new exists while the file is replaced.

    Args:
        path: need not exist; its directory must. A symbolic link stands for the file that it names.
    """

    def __init__(self, path: str | Path):
        self._path = Path(os.path.realpath(path))
        self._file, self._lock = -1, -1

    async def load(self) -> bytes:
        return await self._in_thread(self._load)

    async def append(self, data: bytes) -> None:
        await self._in_thread(self._append, data)

    async def truncate(self, size: int) -> None:
        await self._in_thread(self._truncate, size)

    async def replace(self, make: Callable[[], bytes]) -> int:
        return await self._in_thread(self._replace, make)

    async def close(self) -> None:
        await self._in_thread(self._close)

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run in a thread. A cancelled caller still waits for the thread, because the thread uses the open file."""
        task = asyncio.ensure_future(asyncio.to_thread(work, *arguments))
        try:
            return await asyncio.shield(task)
        except OSError as error:
            fact = f"cannot write the journal {self._path} ({error.strerror})"
            remedy = "free disk space and restart: the journal has every acknowledged change"
            raise JournalError(f"{fact}; {remedy}") from error
        finally:
            await asyncio.gather(task, return_exceptions=True)

    def _load(self) -> bytes:
        try:
            self._lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            return self._path.read_bytes()
        except BlockingIOError as error:
            raise UsageError(f"another process writes the journal {self._path}; end it or name another file") from error
        except OSError as error:
            fact = f"cannot open the journal {self._path} ({error.strerror})"
            raise UsageError(f"{fact}; name a file in a directory that may be written") from error

    def _append(self, data: bytes) -> None:
        _write_all(self._file, data)
        os.fdatasync(self._file)

    def _truncate(self, size: int) -> None:
        os.ftruncate(self._file, size)
        os.fsync(self._file)

    def _replace(self, make: Callable[[], bytes]) -> int:
        new_path = Path(f"{self._path}.new")
        data = make()
        file = os.open(new_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _write_all(file, data)
            os.fsync(file)
            os.replace(new_path, self._path)
            _sync_directory(self._path.parent)
        except OSError:
            os.close(file)
            raise
        os.close(self._file)
        self._file = file
        return len(data)

    def _close(self) -> None:
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
