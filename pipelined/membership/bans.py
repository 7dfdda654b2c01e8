"""Bans: after a failure, a client sends a member no requests for a while.

A ban ends when its time is up and the member has announced itself again. A ban soon after the last one lasts twice as
long. The caller passes the current time.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import NamedTuple

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
"""Seconds for which a member that failed receives no requests, at first and at most."""


class AnnouncedMember(NamedTuple):
    """A member as it announced itself: its address, and the revision of its record in the directory."""

    address: str
    revision: int


@dataclass(frozen=True, slots=True)
class _Ban:
    revision: int
    seconds: float
    end: float


class Bans:
    """The bans of one client.

    Source: SWARM, Appendix C, Algorithm 1, line 11, and section 3.2; the back-off is our own.
    """

    def __init__(self) -> None:
        self._bans: dict[str, _Ban] = {}

    def ban(self, member: AnnouncedMember, now: float) -> float:
        """Ban a peer that failed; further failures change nothing until it announces itself again.

        The ban lasts twice as long as the previous one, unless the peer then went without a failure for as long as that
        ban had lasted.

        Returns: the moment from which it may receive requests, once it has announced itself again.
        """
        last_ban = self._bans.get(member.address)
        if last_ban is None:
            seconds = FIRST_PAUSE_S
        elif last_ban.revision == member.revision:
            return last_ban.end
        else:
            is_relapse = now <= last_ban.end + last_ban.seconds
            seconds = min(2 * last_ban.seconds, LONGEST_PAUSE_S) if is_relapse else FIRST_PAUSE_S
        self._bans[member.address] = _Ban(member.revision, seconds, now + seconds)
        return now + seconds

    def available_at(self, member: AnnouncedMember, now: float) -> float:
        """The moment from which a member may receive requests; infinity until it has announced itself again."""
        ban = self._bans.get(member.address)
        if ban is None:
            return now
        return float("inf") if ban.revision == member.revision else max(now, ban.end)

    def forget(self, members: Container[AnnouncedMember], now: float) -> None:
        """Drop the bans that have no effect any more.

        A ban is kept for twice its time, so that a relapse is known, and until its member has gone or has announced
        itself again.
        """
        self._bans = {
            address: ban
            for address, ban in self._bans.items()
            if now <= ban.end + ban.seconds or AnnouncedMember(address, ban.revision) in members
        }

    def remaining(self, members: Container[AnnouncedMember], now: float) -> Mapping[str, float]:
        """Seconds that are left of each ban, by address; 0: it lasts until the member announces itself again."""
        return {
            address: max(0.0, ban.end - now)
            for address, ban in self._bans.items()
            if ban.end > now or AnnouncedMember(address, ban.revision) in members
        }
