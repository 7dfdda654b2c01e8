"""Where the ranks of one machine meet, if its launcher gives no port to listen at: rank 0 leaves its address in a file.

The launcher's own store would do as well, but it speaks only to torch, which takes every rank seconds to import.

    <port> <key in hexadecimal>      mode 0600, in a folder that only this user can read and write

The key is drawn afresh for each meeting, so that only processes that can read the file are admitted as ranks. Rank 0
holds a lock on the file while the ranks meet. The kernel releases it if rank 0 dies, so a file without a lock is one
that a dead rank 0 left behind, and is not believed: its port may belong to another program by now.
"""

import fcntl
import os
import secrets
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from transports.errors import RendezvousError
from transports.tcp.config import Place
from transports.tcp.join.handshake import digest
from transports.tcp.sockets import Address, listen

LOOPBACK = "127.0.0.1"
KEY_BYTES = 32
FILE_BYTES = 256


class NodeFile:
    """A meeting point; the launcher's port, which no two jobs of a machine share, and the run name the file.

    Attributes:
        key: of this meeting; known once `open` has returned, or `find` has returned an address.
    """

    def __init__(self, place: Place):
        self._file = private_folder() / f"{place.port}-{digest(place.run).hex()}"
        self._locked: int | None = None
        self.key = b""

    async def open(self) -> socket.socket:
        """Listen, and leave the port and a new key in the file, which replaces one of a dead rank 0."""
        listener = listen((LOOPBACK, 0))
        self.key = secrets.token_bytes(KEY_BYTES)
        try:
            self._leave(f"{listener.getsockname()[1]} {self.key.hex()}")
        except BaseException:
            listener.close()
            raise
        return listener

    async def find(self) -> list[Address]:
        """The address in the file, if a living rank 0 left it there.

        Raises:
            RendezvousError: another user could have written or read the file, or it has other content.
        """
        return self._found()

    def close(self) -> None:
        """All ranks have met, or never will: remove the file, unless another rank 0 has replaced it."""
        if self._locked is None:
            return
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(self._file), os.fstat(self._locked)):
                self._file.unlink()
        os.close(self._locked)
        self._locked = None

    def _found(self) -> list[Address]:
        try:
            found = os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._no_file(error.strerror) from error
        with open(found, "rb") as file:
            status = os.fstat(found)
            if status.st_uid != os.getuid() or status.st_mode & 0o170077 != 0o100000:
                raise self._no_file(f"owner: {status.st_uid}, mode: {status.st_mode:o}")
            return self._read(file.read(FILE_BYTES)) if is_locked(found) else []

    def _leave(self, text: str) -> None:
        """Write a file of mode 0600, lock it, and only then give it its name."""
        self._locked, aside = tempfile.mkstemp(dir=self._file.parent)
        try:
            with suppress(OSError):  # no locks on this file system: `is_locked` then takes every file for a living one
                fcntl.flock(self._locked, fcntl.LOCK_EX)
            os.write(self._locked, text.encode())
            os.replace(aside, self._file)
        except BaseException:
            os.unlink(aside)
            os.close(self._locked)
            self._locked = None
            raise

    def _read(self, data: bytes) -> list[Address]:
        try:
            port, key = data.decode().split()
            address, self.key = (LOOPBACK, int(port)), bytes.fromhex(key)
        except ValueError as error:
            raise self._no_file(f"{len(data)} bytes of another form") from error
        return [address]

    def _no_file(self, fact: str | None) -> RendezvousError:
        return RendezvousError(f"{self._file} was not left there by rank 0 of this user ({fact}); remove it")


def is_locked(file: int) -> bool:
    """Whether the process that locked an open file lives; True also where the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def private_folder() -> Path:
    """This user's folder for such files, made if need be.

    Raises:
        RendezvousError: another user made it, or may read it or write into it.
    """
    folder = Path(tempfile.gettempdir(), f"pipelined-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o170077 != 0o040000:
        fact = f"{folder} is not a private folder of this user's (owner: {found.st_uid}, mode: {found.st_mode:o})"
        raise RendezvousError(f"{fact}; remove it, or set TMPDIR to a place of your own")
    return folder
