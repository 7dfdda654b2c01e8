"""The lock of a stage's directory: several peers may save a stage in it, and one writes at a time.

The kernel releases the lock of a process that dies, not that of one that is suspended. So the file has the name of the
process that locked it, and a process that knows that one to be gone removes the file: the next lock is on another.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

FILE = "saving"
UNNAMED = "a process without a name"


@contextmanager
def stage_lock(stage_directory: Path, name: str, gone_process: str) -> Iterator[str | None]:
    """Lock a stage's directory. Yields ""; or the process that has the lock; or None: the file system has no locks.

    Args:
        name: of this process.
        gone_process: the name of a process that is gone: the lock is taken from it.
    Raises:
        OSError: nothing can be written there.
    """
    stage_directory.mkdir(parents=True, exist_ok=True)
    path = stage_directory / FILE
    if gone_process and path.exists() and path.read_text(errors="replace") == gone_process:
        path.unlink(missing_ok=True)
    with path.open("a+") as file:  # a holder's name is not to be cut off
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_path_of(path, file):  # a third process has removed it since, and may have locked the next one
                raise BlockingIOError
        except BlockingIOError:
            file.seek(0)
            yield file.read() or UNNAMED
        except OSError:
            yield None
        else:
            file.truncate(0)
            file.write(name)
            file.flush()
            yield ""


def _is_path_of(path: Path, file: IO[str]) -> bool:
    """Whether a path is still that of an open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
