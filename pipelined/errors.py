"""Errors that a user can put right: told in one message, from one rank, with exit code 2."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UsageError(ValueError):
    """Input that cannot work: the message gives the fact, the numbers and the remedy, and needs no traceback."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write a file into one message."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); name a file in a folder you can write to") from error
