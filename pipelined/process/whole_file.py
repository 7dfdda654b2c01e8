"""A file that is written whole or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from pipelined.errors import writing

REFUSALS = (errno.EACCES, errno.EPERM, errno.EISDIR, errno.EINVAL, errno.ENOTSUP, errno.EBADF)
"""The errors of systems that open no directory, or sync none: those that are not POSIX, and some network disks."""


@contextmanager
def whole_file(path: str | Path, durable: bool = False) -> Iterator[Path]:
    """A path beside that of a file, to write to: at the end of the block what is there replaces the file at once.

    After an error the file is as it was, and the path is removed. Several processes may write one file: the last to
    end replaces it.

    Args:
        durable: whether bytes and name are on the disk at the end of the block, so that they outlast a loss of power.
    Raises:
        OSError: it cannot be written.
    """
    path = Path(path)
    part = path.with_name(f".{secrets.token_hex(4)}.part{path.suffix}")
    try:
        yield part
        if durable:
            force(part)
        part.replace(path)
        if durable:
            force(path.parent)
    finally:
        part.unlink(missing_ok=True)


def force(path: Path) -> None:
    """Force to disk the bytes of a file, or the names in a directory.

    Raises:
        OSError: the disk fails. A system that opens or syncs no directory is no error: nothing could be done.
    """
    refusals = REFUSALS if path.is_dir() else ()
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in refusals:
            raise


def require_writable(path: Path) -> None:
    """Refuse a path that no file can be written to, hours before it is; an unnamed file is made beside it for a moment.

    Raises:
        UsageError: it is a directory, or its directory is missing or takes no file.
    """
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        with TemporaryFile(dir=path.parent):
            pass
