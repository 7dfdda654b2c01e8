"""Finds the members that withhold their part of a sum, from the replies of all its members.

A member that owns a slice reports which members' parts it lacks. A member that sent its part reports which owners have
not replied. An owner that lacks a part itself cannot reply, so it is not overdue. How long a member may contribute
nothing follows from the duration of whole sums: a slow sum is not late while its pieces arrive.
"""

from collections.abc import Callable, Mapping

from pipelined.swarm.protocol.rounds import Reach


def overdue(reports: Mapping[str, Reach], limit: Callable[[str], float]) -> dict[str, frozenset[str]]:
    """By the name of a member, the others for which it has waited too long.

    Args:
        reports: replies by name; a missing member could not be reached.
        limit: returns the seconds for which the member of this name may contribute nothing.
    """
    waits = dict[str, frozenset[str]]()
    for name, each in reports.items():
        parts = {other for other, seconds in each.parts.items() if seconds > limit(other)}
        owing = {other for other, seconds in each.totals.items() if seconds > limit(other)}
        waits[name] = frozenset(parts | {other for other in owing if other in reports and not reports[other].parts})
    return waits
