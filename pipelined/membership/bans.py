"""Bans: after a failure, a client sends a member no requests for a while.

A ban ends when its time is up and the member has announced itself again, under another incarnation. A ban soon after
the last one lasts twice as long. The caller passes the current time.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass

from transports.rpc import Party

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
"""Seconds for which a member that failed receives no requests, at first and at most."""


@dataclass(frozen=True, slots=True)
class _Ban:
    incarnation: int
    seconds: float
    until: float


class Bans:
    """The bans of one client.

    Source: SWARM, Appendix C, Algorithm 1, line 11, and section 3.2; the back-off is our own.
    """

    def __init__(self) -> None:
        self._bans: dict[str, _Ban] = {}

    def ban(self, party: Party, now: float) -> float:
        """Ban a peer that failed; further failures of the same incarnation change nothing.

        The ban lasts twice as long as the previous one, unless the peer had no failure after that for as long as that
        ban had lasted.

        Returns: the moment from which another incarnation may receive requests.
        """
        last = self._bans.get(party.address)
        if last is None:
            seconds = FIRST_PAUSE_S
        elif last.incarnation == party.incarnation:
            return last.until
        else:
            relapsed = now <= last.until + last.seconds
            seconds = min(2 * last.seconds, LONGEST_PAUSE_S) if relapsed else FIRST_PAUSE_S
        self._bans[party.address] = _Ban(party.incarnation, seconds, now + seconds)
        return now + seconds

    def available_at(self, party: Party, now: float) -> float:
        """The moment from which a party may receive requests; infinity until it has announced itself again."""
        ban = self._bans.get(party.address)
        if ban is None:
            return now
        return float("inf") if ban.incarnation == party.incarnation else max(now, ban.until)

    def forget(self, members: Container[Party], now: float) -> None:
        """Drop a ban once twice its time is over and the banned incarnation is not a member any more.

        Args:
            members: the members, with their present incarnations.
        """
        self._bans = {
            address: ban
            for address, ban in self._bans.items()
            if now <= ban.until + ban.seconds or Party(address, ban.incarnation) in members
        }

    def remaining(self, now: float) -> Mapping[str, float]:
        """Seconds until each ban ends, by address; ended bans are left out."""
        return {address: ban.until - now for address, ban in self._bans.items() if ban.until > now}
