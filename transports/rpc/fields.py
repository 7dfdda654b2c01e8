"""The fields of a request's or a reply's note, checked when they are read; a wrong one is refused as "malformed"."""

from typing import Any

from transports.rpc.base import Rejected

MOST = 1 << 62
MOST_NUMBER = 1e300
"""Largest number accepted from the network, so that sums of such numbers are finite."""


def field(note: Any, name: str) -> Any:
    """A field of a note; None if it is missing. Raises Rejected: the value is not a note."""
    if type(note) is not dict:
        raise Rejected("malformed", why="no note")
    return note.get(name)


def whole(note: Any, name: str) -> int:
    """Read a whole number from 0 up."""
    value = field(note, name)
    if type(value) is not int or not 0 <= value < MOST:
        raise Rejected("malformed", why=f"{name} is not a number from 0 up (got: {value!r:.40})")
    return value


def number(note: Any, name: str) -> float:
    """Read a number of at most `MOST_NUMBER`."""
    value = field(note, name)
    if type(value) not in (int, float) or not abs(value) <= MOST_NUMBER:
        raise Rejected("malformed", why=f"{name} is not a number up to {MOST_NUMBER:g} (got: {value!r:.40})")
    return float(value)
