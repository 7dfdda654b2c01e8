"""Errors that the user can correct: reported in one message, by one rank, with exit code 2."""

import difflib
import errno
import math
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path

OWN = Path(__file__).parent
FilePath = str | os.PathLike[str]
"""A path as a user gives one."""
LONGEST_NAME = 255
"""The most bytes of a file's name, on the file systems of Linux."""
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
"""What reading data of others raises where they are not as they should be.

A number such as 1e999 or 10**400 raises OverflowError where it becomes an int or a float, and deep JSON RecursionError.
"""


class UsageError(ValueError):
    """Invalid input: the message gives the fact, the numbers and the remedy; no traceback is shown."""


class AgreedError(UsageError):
    """A user error, raised on every rank at the same point."""


class UnknownFlags(UsageError):
    """A command line has flags that its program does not know.

    Args:
        flags: these, as they were given, without their values.
    """

    def __init__(self, message: str, flags: tuple[str, ...]):
        super().__init__(message)
        self.flags = flags


class JobFailed(Exception):
    """A job that has ended on all ranks, by an error or because it was closed; it takes no further calls.

    Args:
        code: the exit code of a job that has printed why it ended: 2 where its user can correct that, 1 otherwise. 0:
            nothing is printed. A program that does not catch this ends with that code, and prints nothing more.
    """

    def __init__(self, message: str, code: int = 0):
        super().__init__(message)
        self.code = code


class Refused(JobFailed, UsageError):
    """A job that has ended on all ranks by an error of one rank that the user can correct; it is printed."""


class OutOfMemory(UsageError):
    """No memory is left for an operation.

    Args:
        doing: the operation, and where.
        error: what was raised; of an `OutOfMemory` its own cause.
        room: the bytes planned and free, in words.
        remedy: what to do, with settings that the program has; None: those of a pipeline.
    """

    def __init__(self, doing: str, error: BaseException, room: str = "", remedy: str | None = None):
        self.error: BaseException = error.error if isinstance(error, OutOfMemory) else error
        super().__init__(f"{doing} failed: {self.error!r}{room}; {remedy or REMEDY}")


REMEDY = (
    "recompute, make microbatches smaller or stages more (`depth=`), divide the update (`shard_optimizer=`) or keep "
    "its state in host memory (`offload_optimizer=`); a plan counts the bytes of each rank"
)


def as_flags(message: str) -> str:
    """A message for a command line: `depth=4` in backquotes becomes --depth 4, and `all_reduce=` --all-reduce.

    Messages of the library name a setting in words and spell a remedy as an argument of a function; only what prints
    an error for a command spells it as a flag.
    """
    return re.sub(r"`([a-z_]+)=([^`]*)`", lambda found: f"--{found[1].replace('_', '-')} {found[2]}".rstrip(), message)


def printable(text: str, but: str = "\n\t") -> str:
    """The text with its control characters, which a terminal would obey, replaced by U+FFFD.

    Args:
        but: characters that are not replaced.
    """
    return "".join(character if character.isprintable() or character in but else "\ufffd" for character in text)


def guess(name: str, known: Iterable[str]) -> str:
    """A part of a remedy: `did you mean NAME? `, with the nearest of the known names; "" where none is near.

    The dashes in front of flags, which all have, make none of them nearer.
    """
    names = {name.lstrip("-"): name for name in known}
    near = difflib.get_close_matches(name.lower().lstrip("-"), sorted(names), 1)
    return f"did you mean {names[near[0]]}? " if near else ""


def got(value: object) -> str:
    """A value of a wrong type, as messages show it: "(got: int 3)"."""
    return f"(got: {type(value).__name__} {value!r:.80})"


def path_of(given: FilePath) -> Path:
    """The path that a user gives. Raises UsageError: it is empty, or has another type."""
    if not isinstance(given, str | os.PathLike) or given == "":
        raise UsageError(f"a path must be a pathlib.Path or a str that is not empty {got(given)}")
    return Path(given)


def plain_name(value: object) -> str:
    """The name of a file that untrusted data give: one of the folder that is read, not a path out of it.

    Raises:
        ValueError: it is no name, or a path.
    """
    is_plain = isinstance(value, str) and value not in ("", "..") and "\0" not in value and Path(value).name == value
    if not is_plain or len(os.fsencode(str(value))) > LONGEST_NAME:
        raise ValueError(f"{value!r:.80} is no name of a file in this folder")
    return str(value)


def require_number(name: str, value: object) -> None:
    """Raises UsageError: the value of a setting, by its name, is not a number, or not one that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise UsageError(f"{name} must be a number, such as 1.5 {got(value)}")
    try:
        float(value)
    except OverflowError as error:  # of an int or a fraction; Python may refuse to print it, too
        largest = f"{sys.float_info.max:.3g}"
        raise UsageError(f"{name} is beyond the largest float ({largest}); give a number nearer to 0") from error


def whole(name: str, value: object, least: float = -math.inf) -> int:
    """The value of a setting as an int; numpy's whole numbers, which JSON does not write, become one.

    Raises:
        UsageError: it is not a whole number, or is below `least`; the message has the name of the setting.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UsageError(f"{name} must be a whole number, such as 4 {got(value)}")
    if value < least:
        raise UsageError(f"{name} must be at least {least} (it is {value})")
    return int(value)


def require_switch(name: str, value: object, remedy: str = "give one of these") -> None:
    """Raises UsageError: the value of a setting, by its name, is neither True nor False."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {value!r:.40}, which is neither True nor False; {remedy}")


def in_bytes(number: float) -> str:
    """Bytes in the largest unit that leaves at least one."""
    power = min(3, max(0, (int(number).bit_length() - 1) // 10))
    return f"{number / (1 << 10 * power):,.4g} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def ran_out_of_memory(error: BaseException) -> bool:
    """Whether a device or this machine has no memory left: torch has a type for the first and a text for the other.

    A peer's error may quote that text, which is another error.
    """
    if isinstance(error, OutOfMemory | MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return type(error) is RuntimeError and "can't allocate memory" in str(error)


def usage_error_of(error: BaseException, doing: str, remedy: str | None = None) -> UsageError | None:
    """No torch or no memory, as an error that the user can correct; None: another. Arguments as of `OutOfMemory`."""
    frames = traceback.extract_tb(error.__traceback__)
    in_torch = any(Path(frame.filename).parts[-2:] == ("torch", "__init__.py") for frame in frames)
    if "torch" not in sys.modules and (in_torch or getattr(error, "name", None) == "torch"):
        more = "give the process more memory, also of addresses (ulimit -v), or install torch again (pip install torch)"
        return UsageError(f"torch cannot be loaded ({error!r}); {more}")
    return OutOfMemory(doing, error, remedy=remedy) if ran_out_of_memory(error) else None


def refuse_below(least: float, name: str, value: float, remedy: str = "") -> None:
    """Raises UsageError: the value of a setting or a flag, by its name, is below `least`, not finite, or no number."""
    require_number(name, value)
    if not least <= value < math.inf:
        finite = ", and finite" if value >= least else ""
        raise UsageError("; ".join(filter(None, [f"{name} must be at least {least}{finite} (it is {value})", remedy])))


def refuse_non_positive(name: str, value: float) -> None:
    """Raises UsageError: the value of a setting or a flag, by its name, is 0 or below, not finite, or no number."""
    require_number(name, value)
    if not 0 < value < math.inf:
        raise UsageError(f"{name} must be above 0, and finite (it is {value})")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write a file into a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); name a file in a folder you can write to") from error


@contextmanager
def user_code(what: str, remedy: str, kind: type[UsageError] = UsageError, *, may_exit: bool = True) -> Iterator[None]:
    """Call a user's function inside the `with` block.

    Args:
        what: the function, and what it is called for, in words.
        kind: of the error.
        may_exit: a SystemExit, also one of a signal handler that came meanwhile, ends the process, as it asks.
    Raises:
        UsageError: the function raised; with its exception, the line of the user's code, and the remedy. One that it
            raised itself, and an error of memory, stay what they are.
    """
    try:
        yield
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        if ran_out_of_memory(error) or (may_exit and isinstance(error, SystemExit)):
            raise
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        line = line_of(error)
        if isinstance(error, AttributeError) and error.name:
            remedy = guess(error.name, dir(error.obj)) + remedy
        raise kind(f"{what} raised {reason}{f', at {line}' if line else ''}; {remedy}") from error


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
