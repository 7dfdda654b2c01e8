"""Where the ranks of one machine meet, if its launcher gives no port to listen at: rank 0 leaves its address in a file.

The launcher's own store would do as well, but it speaks only to torch, which takes every rank seconds to import. The
one rule: the file lies in a folder that nobody but this user can write, and is gone when all have met.
"""

import os
import socket
import tempfile
from pathlib import Path

from transports._errors import RendezvousError
from transports._handshake import digest
from transports._place import Place
from transports._sockets import Address, listen

LOOPBACK = "127.0.0.1"


class NodeFile:
    """A meeting point; the launcher's port, which no two jobs of a machine share, and the run name the file."""

    def __init__(self, place: Place):
        self._file = private_folder() / f"{place.port}-{digest(place.run).hex()}"

    async def open(self) -> socket.socket:
        listener = listen((LOOPBACK, 0))
        aside = self._file.with_suffix(".new")
        aside.write_text(str(listener.getsockname()[1]))
        aside.replace(self._file)
        return listener

    async def find(self) -> list[Address]:
        try:
            return [(LOOPBACK, int(self._file.read_text()))]
        except FileNotFoundError:
            return []

    def close(self) -> None:
        """All have met, or never will."""
        self._file.unlink(missing_ok=True)


def private_folder() -> Path:
    """This user's folder for such files, made if need be.

    Raises:
        RendezvousError: somebody else made it, or may write into it.
    """
    folder = Path(tempfile.gettempdir(), f"pipelined-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or found.st_mode & 0o170077 != 0o040000:
        fact = f"{folder} is not a private folder of this user's (owner: {found.st_uid}, mode: {found.st_mode:o})"
        raise RendezvousError(f"{fact}; remove it, or set TMPDIR to a place of your own")
    return folder
