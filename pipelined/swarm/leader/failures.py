"""Failures of members: why a round failed, and what a leader remembers of members that failed or were evicted."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from pipelined.membership.bans import LONGEST_PAUSE_S
from pipelined.membership.view import NoLongerValid
from pipelined.swarm.protocol.rounds import parties_of
from pipelined.swarm.records.members import PeerRecord
from transports.rpc import Rejected

FORGIVEN_STEPS = 32
"""Steps that a member must sum with others of its stage, without a failure, before its old failures are forgotten."""
MAX_NAMES = 4096
"""Names that are remembered; beyond this number the oldest are forgotten."""
MAX_DOUBLINGS = 32
"""The most doublings of a pause or a limit, so that both stay finite."""


class Failure(NamedTuple):
    """Why one round failed at one stage.

    Args:
        members: the two between which the sum failed; or one that failed by itself.
        why: as a member or the leader described it.
        reporter: the member that reported it.
        source: the one of the two that the reporter had the failure from, where the reporter is neither.
    """

    stage: int
    members: frozenset[str]
    why: str
    reporter: str = ""
    source: str = ""


class FailureLog:
    """Why a round failed: what members refused, or reported about one another.

    Attributes:
        beyond_codec: by stage, why the codec could not carry its sums; no member is at fault.
    """

    def __init__(self) -> None:
        self.beyond_codec = dict[int, str]()
        self._failures = list[Failure]()

    @property
    def failures(self) -> list[Failure]:
        """The failures, each with the members that it counts against.

        A member may pass on a report that two others failed. If neither of these two reports the failure itself, it
        counts against the reporting member and the member that it had the report from. So no member can have two
        others evicted by a false report.
        """
        confirmed = {
            (failure.stage, failure.members) for failure in self._failures if failure.reporter in failure.members
        }
        return [
            failure if (failure.stage, failure.members) in confirmed else _unconfirmed(failure)
            for failure in self._failures
        ]

    def note(self, stage: int, peer: PeerRecord, error: NoLongerValid | Rejected, members: Set[str]) -> None:
        """Record which members failed: the two that a refusal names, or else the peer that replied.

        Args:
            members: names of the stage's members; a refusal may name no others.
        """
        parties = parties_of(error)
        why = f"{peer.name}: {error}"
        if not parties or not members >= set(parties):
            self._failures.append(Failure(stage, frozenset([peer.name]), why, peer.name))
        else:
            self._failures.append(Failure(stage, frozenset(parties), why, peer.name, parties[0]))

    def note_pair(self, stage: int, pair: tuple[str, str], why: str) -> None:
        """Record two members that the leader found to differ."""
        self._failures.append(Failure(stage, frozenset(pair), why, pair[0]))


def _unconfirmed(failure: Failure) -> Failure:
    """The same failure, between the member that reported it and the member that it had the report from."""
    return failure._replace(members=frozenset([failure.reporter, failure.source]))


@dataclass
class _MemberHistory:
    """One name: partners that it failed with, evictions in a row, and steps summed since the last of either."""

    partners: set[str] = field(default_factory=set)
    evictions: int = 0
    good_steps: int = 0


class EvictionHistory:
    """The failures and evictions that one process has recorded, by name."""

    def __init__(self) -> None:
        self._members = dict[str, _MemberHistory]()

    def record_failed(self, groups: Iterable[Iterable[str]]) -> None:
        """Record groups of members that failed with one another; a group of one failed by itself."""
        for group in map(frozenset, groups):
            for name in group:
                member = self._history_of(name)
                member.partners |= group - {name}
                member.good_steps = 0

    def record_summed(self, members: Sequence[Sequence[str]]) -> None:
        """Record that these members, by stage, committed a step. A member alone at its stage summed with no other."""
        for name in (name for names in members if len(names) > 1 for name in names):
            if name in self._members:
                self._members[name].good_steps += 1
                if self._members[name].good_steps >= FORGIVEN_STEPS:
                    del self._members[name]

    @property
    def partners(self) -> Mapping[str, int]:
        """By name, with how many others the member failed; missing names failed with no other."""
        return {name: len(member.partners) for name, member in self._members.items()}

    def next_eviction(self, name: str, known_times: int, lease_s: float) -> tuple[int, float]:
        """How many evictions in a row one more would make, and the seconds of its pause. Records nothing.

        The first pause is one lease. Each later pause is twice as long, up to the longer of 300 s and one lease.

        Args:
            known_times: evictions in a row of this name, as the directory has them.
        """
        times = max(self.evictions(name), known_times) + 1
        pause = lease_s * 2 ** min(times - 1, MAX_DOUBLINGS)
        return times, min(pause, max(LONGEST_PAUSE_S, lease_s))

    def record_evicted(self, name: str, times: int) -> None:
        """Record an eviction that the directory has; `times`: in a row, with this one."""
        member = self._history_of(name)
        member.evictions, member.good_steps = times, 0

    def evictions(self, name: str) -> int:
        """How often in a row a member was evicted."""
        return self._members[name].evictions if name in self._members else 0

    def remembers(self, name: str) -> bool:
        """Whether this process still has a record of a name."""
        return name in self._members

    def _history_of(self, name: str) -> _MemberHistory:
        member = self._members.setdefault(name, _MemberHistory())
        if len(self._members) > MAX_NAMES:
            del self._members[next(member for member in self._members if member != name)]
        return member
