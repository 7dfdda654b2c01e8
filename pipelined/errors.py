"""Errors that the user can correct: reported in one message, by one rank, with exit code 2."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UsageError(ValueError):
    """Invalid input: the message gives the fact, the numbers and the remedy; no traceback is shown."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write a file into a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); name a file in a folder you can write to") from error
