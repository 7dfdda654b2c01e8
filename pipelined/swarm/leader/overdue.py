"""Which members withhold their part of a sum, from what all of its members say.

A member that owns a slice knows whose parts it lacks, and a member that brought its part knows which owners have not
answered. An owner that itself lacks a part cannot answer, so nothing is held against it. How long a member may bring
nothing follows from how long whole sums took: a slow sum is not late as long as its pieces come.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipelined.swarm.protocol import field
from transports.rpc import Rejected

MOST_AWAITED = 4096
"""Members that one member may say it waits for."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one member answers to the leader while a sum lasts.

    Args:
        silent: members that it cannot reach.
        parts: by name, seconds since a member last brought a part, where it has not brought the first that is missing.
        totals: by name, seconds since an owner last answered, where it owes an answer.
    """

    silent: frozenset[str]
    parts: Mapping[str, float]
    totals: Mapping[str, float]


def read_said(note: Any) -> Said:
    """Raises Rejected: it cannot be read."""
    names = field(note, "silent")
    if type(names) is not list or any(type(name) is not str for name in names):
        raise Rejected("malformed", why=f"not names of peers (got: {names!r:.80})")
    return Said(frozenset(names), _seconds(note.get("parts")), _seconds(note.get("totals")))


def overdue(said: Mapping[str, Said], limit: Callable[[str], float]) -> dict[str, frozenset[str]]:
    """By the name of a member, the others for which it has waited too long.

    Args:
        said: by name; members that could not be asked are missing.
        limit: seconds for which a member of this name may bring nothing.
    """
    waits = dict[str, frozenset[str]]()
    for name, each in said.items():
        parts = {other for other, seconds in each.parts.items() if seconds > limit(other)}
        owing = {other for other, seconds in each.totals.items() if seconds > limit(other)}
        waits[name] = frozenset(parts | {other for other in owing if other in said and not said[other].parts})
    return waits


def _seconds(told: Any) -> dict[str, float]:
    """Raises Rejected: these are no seconds by name."""
    if told is None:
        return {}
    if type(told) is not dict or len(told) > MOST_AWAITED:
        raise Rejected("malformed", why=f"not seconds by name (got: {told!r:.80})")
    if not all(type(name) is str and type(each) is float and each >= 0.0 for name, each in told.items()):
        raise Rejected("malformed", why=f"not seconds by name (got: {told!r:.80})")
    return told
