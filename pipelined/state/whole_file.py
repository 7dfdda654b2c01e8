"""A file that is written whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

from pipelined.errors import writing


@contextmanager
def whole_file(path: str | Path, durable: bool = False) -> Iterator[Path]:
    """A path beside that of a file, to write to: at the end of the block what is there replaces the file at once.

    After an error the file is as it was, and the path is removed. Several processes may write one file: the last to
    end replaces it.

    Args:
        durable: whether the bytes are on the disk before they replace the file, so that they outlast a loss of power.
    Raises:
        OSError: it cannot be written.
    """
    path = Path(path)
    part = path.with_name(f".{secrets.token_hex(4)}.part{path.suffix}")
    try:
        yield part
        if durable:
            with part.open("rb") as file:
                os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


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
