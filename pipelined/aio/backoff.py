"""Whom one asker leaves alone for a while because it failed to answer.

The rule: a banned peer returns when it has announced itself again, under another incarnation, and its time is up; each
ban soon after the last doubles that time. Moments are arguments. Knows parties; must not know stages or choices.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass

from transports.rpc import Party

FIRST_S, MOST_S = 1.0, 300.0
"""How long the first ban of a peer lasts, and the longest."""


@dataclass(frozen=True, slots=True)
class _Ban:
    incarnation: int
    seconds: float
    until: float


class Bans:
    """The bans that one asker has pronounced.

    Args:
        first, most: seconds of a peer's first ban, and of the longest.

    Source: SWARM, Appendix C, Algorithm 1, line 11, and section 3.2; the back-off is our own.
    """

    def __init__(self, first: float = FIRST_S, most: float = MOST_S):
        if not 0 < first <= most:
            raise ValueError(f"bans cannot grow from {first} to {most} s; let 0 < first <= most")
        self._first, self._most = first, most
        self._bans: dict[str, _Ban] = {}

    def ban(self, party: Party, now: float) -> float:
        """Ban a peer that failed; several failures of one incarnation are one.

        The ban lasts twice as long as the last one if the peer has not behaved for as long as that had lasted.

        Returns: the moment from which another incarnation is welcome.
        """
        last = self._bans.get(party.address)
        if last is None:
            seconds = self._first
        elif last.incarnation == party.incarnation:
            return last.until
        else:
            relapsed = now <= last.until + last.seconds
            seconds = min(2 * last.seconds, self._most) if relapsed else self._first
        self._bans[party.address] = _Ban(party.incarnation, seconds, now + seconds)
        return now + seconds

    def returns(self, party: Party, now: float) -> float:
        """The moment from which a party may be asked: `now`, a later one, or infinity if it must announce itself."""
        ban = self._bans.get(party.address)
        if ban is None:
            return now
        return float("inf") if ban.incarnation == party.incarnation else max(now, ban.until)

    def forget(self, members: Container[Party], now: float) -> None:
        """Let go of bans that count no more: their time and as long again is up, and whom they keep away is no member.

        Args:
            members: whoever can be asked, under their present incarnations.
        """
        self._bans = {
            address: ban
            for address, ban in self._bans.items()
            if now <= ban.until + ban.seconds or Party(address, ban.incarnation) in members
        }

    def remaining(self, now: float) -> Mapping[str, float]:
        """Seconds that bans still last, by address; those that are up are left out."""
        return {address: ban.until - now for address, ban in self._bans.items() if ban.until > now}
