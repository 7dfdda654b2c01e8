"""What a command raises for input it cannot use."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class BadInput(ValueError):
    """The user's to mend; the message says the fact, the numbers and what would do."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write a file into one message."""
    try:
        yield
    except OSError as error:
        raise BadInput(f"cannot write {path} ({error.strerror}); name a file in a folder you can write to") from error
