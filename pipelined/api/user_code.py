"""Functions of a user that the runtime calls: an exception becomes one error, with the line of the user's code."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelined.errors import UsageError, ran_out_of_memory

OWN = Path(__file__).parent.parent


@contextmanager
def user_code(what: str, remedy: str, kind: type[UsageError] = UsageError) -> Iterator[None]:
    """Call a user's function inside the `with` block.

    Args:
        what: the function, and what it is called for, in words.
        kind: of the error.
    Raises:
        UsageError: the function raised; with its exception, the line of the user's code, and the remedy. One that it
            raised itself, and an error of memory, stay what they are.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        if ran_out_of_memory(error):
            raise
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        place = line_of(error)
        raise kind(f"{what} raised {reason}{f', at {place}' if place else ''}; {remedy}") from error


def line_of(error: BaseException) -> str:
    """The innermost line of an error's traceback that is neither Python's, nor torch's, nor this package's; or ""."""
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    others = [OWN, *([Path(torch).parent] if torch else [])]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        is_pythons = path.is_relative_to(Path(traceback.__file__).parent) and "site-packages" not in path.parts
        if path.exists() and not is_pythons and not any(map(path.is_relative_to, others)):
            return f"{path.name}, line {frame.lineno} ({frame.line})"
    return ""
