"""Finds the members that withhold their part of a sum, from the replies of all its members.

A member that owns a slice reports which members' parts it lacks. A member that sent its part reports which owners have
not replied. An owner that lacks a part itself cannot reply, so it is not overdue. How long a member may contribute
nothing follows from the duration of whole sums: a slow sum is not late while its pieces arrive.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from transports.rpc import Rejected
from transports.rpc.fields import field

MOST_AWAITED = 4096
"""Largest number of members in one reply that its sender waits for."""


@dataclass(frozen=True, slots=True)
class Said:
    """One member's reply to the leader during a sum.

    Args:
        silent: members that it cannot reach.
        parts: by name, seconds since the member last sent a part, for members that have not sent the first missing one.
        totals: by name, seconds since the owner last replied, for owners that owe a reply.
    """

    silent: frozenset[str]
    parts: Mapping[str, float]
    totals: Mapping[str, float]


def read_said(note: Any) -> Said:
    """Raises Rejected: the reply cannot be read."""
    names = field(note, "silent")
    if type(names) is not list or any(type(name) is not str for name in names):
        raise Rejected("malformed", why=f"not names of peers (got: {names!r:.80})")
    return Said(frozenset(names), _seconds(note.get("parts")), _seconds(note.get("totals")))


def overdue(said: Mapping[str, Said], limit: Callable[[str], float]) -> dict[str, frozenset[str]]:
    """By the name of a member, the others for which it has waited too long.

    Args:
        said: replies by name; a missing member could not be reached.
        limit: returns the seconds for which the member of this name may contribute nothing.
    """
    waits = dict[str, frozenset[str]]()
    for name, each in said.items():
        parts = {other for other, seconds in each.parts.items() if seconds > limit(other)}
        owing = {other for other, seconds in each.totals.items() if seconds > limit(other)}
        waits[name] = frozenset(parts | {other for other in owing if other in said and not said[other].parts})
    return waits


def _seconds(told: Any) -> dict[str, float]:
    """Raises Rejected: the value is not seconds by name."""
    if told is None:
        return {}
    if type(told) is not dict or len(told) > MOST_AWAITED:
        raise Rejected("malformed", why=f"not seconds by name (got: {told!r:.80})")
    if not all(type(name) is str and type(each) is float and each >= 0.0 for name, each in told.items()):
        raise Rejected("malformed", why=f"not seconds by name (got: {told!r:.80})")
    return told
