"""Failures of members, and evictions: the leader removes members that cannot be reached, or that make attempts fail.

`choose_evictions` takes each peer's report of the peers that it cannot reach. The same reports give the same choice in
every process, and at least one serving peer always stays. A broken link does not show which of its two ends failed. So
the goal is to evict few peers such that the remaining ones all reach each other; a greedy search chooses them.

The transaction holds only while this leader leads and another peer serves the stage. An evicted peer sees its eviction
in the directory, keeps its state, and joins again after a pause that the directory stores (`evicted/NAME`); each pause
is longer than the one before, until `EvictionHistory` forgets a member that has taken part in steps again.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from pipelined.membership.bans import MAX_S
from pipelined.membership.directory import Conflict, CutOff
from pipelined.membership.view import NoLongerValid
from pipelined.process.reporting.events import warn
from pipelined.swarm.protocol.rounds import parties_of
from pipelined.swarm.records.members import EVICTED, LEADER, PEERS, WORKING, Eviction, Peer
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from transports.rpc import Rejected

FORGIVEN_STEPS = 32
"""Steps that a member must sum with others of its stage, without a failure, before its old failures are forgotten."""
MAX_NAMES = 4096
"""Names that are remembered; beyond this number the oldest are forgotten."""
MAX_DOUBLINGS = 32
"""The most doublings of a pause or a limit, so that both stay finite."""


class Failure(NamedTuple):
    """Why one attempt failed at one stage.

    Args:
        members: the two between which the sum failed; or one that failed by itself.
        why: as a member or the leader described it.
        by: the member that reported it.
        through: the one of the two that `by` had the failure from, where `by` is neither.
    """

    stage: int
    members: frozenset[str]
    why: str
    by: str = ""
    through: str = ""


class FailureLog:
    """Why an attempt failed: what members refused, or reported about one another.

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
        own = {(each.stage, each.members) for each in self._failures if each.by in each.members}
        return [each if (each.stage, each.members) in own else _unconfirmed(each) for each in self._failures]

    def note(self, stage: int, peer: Peer, error: NoLongerValid | Rejected, members: Set[str]) -> None:
        """Record which members failed: the two that a refusal names, or else the peer that replied.

        Args:
            members: names of the stage's members; a refusal may name no others.
        """
        named, why = parties_of(error), f"{peer.name}: {error}"
        if not named or not members >= set(named):
            self._failures.append(Failure(stage, frozenset([peer.name]), why, peer.name))
        else:
            self._failures.append(Failure(stage, frozenset(named), why, peer.name, named[0]))

    def note_pair(self, stage: int, pair: tuple[str, str], why: str) -> None:
        """Record two members that the leader found to differ."""
        self._failures.append(Failure(stage, frozenset(pair), why, pair[0]))


def _unconfirmed(failure: Failure) -> Failure:
    """The same failure, between the member that reported it and the member that it had the report from."""
    return failure._replace(members=frozenset([failure.by, failure.through]))


@dataclass
class _MemberHistory:
    """Of one name: partners that it failed with, evictions in a row, and steps summed since the last of either."""

    partners: set[str] = field(default_factory=set)
    evictions: int = 0
    good: int = 0


class EvictionHistory:
    """The failures and evictions that one process has recorded, by name."""

    def __init__(self) -> None:
        self._members = dict[str, _MemberHistory]()

    def record_failed(self, groups: Iterable[Iterable[str]]) -> None:
        """Record groups of members that failed with one another; a group of one failed by itself."""
        for group in map(frozenset, groups):
            for name in group:
                member = self._of_member(name)
                member.partners |= group - {name}
                member.good = 0

    def record_summed(self, members: Sequence[Sequence[str]]) -> None:
        """Record that these members, by stage, committed a step. A member alone at its stage summed with no other."""
        for name in (name for names in members if len(names) > 1 for name in names):
            if name in self._members:
                self._members[name].good += 1
                if self._members[name].good >= FORGIVEN_STEPS:
                    del self._members[name]

    @property
    def partners(self) -> Mapping[str, int]:
        """By name, with how many others the member failed; missing names failed with no other."""
        return {name: len(member.partners) for name, member in self._members.items()}

    def next_eviction(self, name: str, known: int, lease_s: float) -> tuple[int, float]:
        """How many evictions in a row one more would make, and the seconds of its pause. Records nothing.

        The first pause is one lease. Each later pause is twice as long, up to the longer of 300 s and one lease.

        Args:
            known: evictions in a row of this name, as the directory has them.
        """
        times = max(self.evictions(name), known) + 1
        pause = lease_s * 2 ** min(times - 1, MAX_DOUBLINGS)
        return times, min(pause, max(MAX_S, lease_s))

    def record_evicted(self, name: str, times: int) -> None:
        """Record an eviction that the directory has; `times`: in a row, with this one."""
        member = self._of_member(name)
        member.evictions, member.good = times, 0

    def evictions(self, name: str) -> int:
        """How often in a row a member was evicted."""
        return self._members[name].evictions if name in self._members else 0

    def remembers(self, name: str) -> bool:
        """Whether this process still has a record of a name."""
        return name in self._members

    def _of_member(self, name: str) -> _MemberHistory:
        member = self._members.setdefault(name, _MemberHistory())
        if len(self._members) > MAX_NAMES:
            del self._members[next(each for each in self._members if each != name)]
        return member


MAX_FAILED = 3
"""Attempts of one step that may fail because of members that are still present, before the leader evicts members."""


def choose_evictions(
    peers: Sequence[Peer], unreachable: Mapping[str, Set[str]], failed_partners: Mapping[str, int]
) -> list[Peer]:
    """The peers to evict, in this order; empty if no serving peer sent a report.

    A link counts as broken if either end reports it. First go the peers without a report, which the leader could not
    reach. Then, one at a time, goes the peer with the most broken links to the remaining peers; among equals the one
    that failed with the most partners before, then one that is leaving anyway, then the youngest. So a peer that
    reports every other peer is evicted first itself, even if it reports them one at a time.

    Args:
        peers: of one stage, that hold its state.
        unreachable: by name, the peers that this peer cannot reach; a peer without an entry sent no report.
        failed_partners: by name, the number of partners with which each peer failed so far, including these broken
            links; see `EvictionHistory.partners`.
    """
    left = [peer for peer in peers if peer.name in unreachable]
    if not any(peer.phase in WORKING for peer in left):
        return []
    gone = [peer for peer in peers if peer.name not in unreachable]
    while broken := _broken_links(left, unreachable):
        can_go = [each for each in left if any(other.phase in WORKING for other in left if other is not each)]
        links = Counter(name for link in broken for name in link)
        last = max(can_go, key=partial(_eviction_rank, links, failed_partners))
        if not links[last.name]:
            break
        left.remove(last)
        gone.append(last)
    return gone


def _eviction_rank(links: Counter[str], failed_partners: Mapping[str, int], peer: Peer) -> tuple[int, int, bool, int]:
    """The peer of the greatest rank is evicted first; see `choose_evictions`.

    Args:
        links: by name, the number of broken links.
    """
    return links[peer.name], failed_partners.get(peer.name, 0), peer.phase not in WORKING, peer.incarnation


def _broken_links(peers: Sequence[Peer], unreachable: Mapping[str, Set[str]]) -> set[frozenset[str]]:
    names = {peer.name for peer in peers}
    return {frozenset((one, other)) for one in names for other in unreachable[one] & names if one != other}


class Evictor:
    """The evictions of one trainer, over all its terms as leader.

    Attributes:
        history: of the failures and evictions that it has seen.
    """

    def __init__(self, view: SwarmView, rules: Rules):
        self._view, self._rules, self.history = view, rules, EvictionHistory()

    async def evict_failed(self, term: int, attempts: Sequence[Sequence[Failure]]) -> bool:
        """Evict the fewest members that cover the failures, after `MAX_FAILED` failed attempts. Returns whether so
        many have failed.

        Args:
            attempts: the failures of each attempt of a step. Failures of members that have left since do not count.
        """
        view = self._view
        blamed = [[each for each in failed if each.members <= view.peers.keys()] for failed in attempts]
        if sum(map(bool, blamed)) < MAX_FAILED:
            return False
        for stage in range(self._rules.stages):
            failures = [each for failed in blamed for each in failed if each.stage == stage]
            if not failures:
                continue
            peers = view.holding(stage)
            alone = {name for each in failures if len(each.members) == 1 for name in each.members}
            reports = {peer.name: _partners(peer.name, failures) for peer in peers if peer.name not in alone}
            why = f"{MAX_FAILED} attempts failed; the last: {failures[-1].why}"
            with suppress(Conflict, CutOff):  # the members changed, or the directory is cut off: make further attempts
                self.history.record_failed(each.members for each in failures)
                await self.evict(term, stage, peers, reports, why)
        return True

    async def evict(
        self, term: int, stage: int, peers: Sequence[Peer], unreachable: Mapping[str, Set[str]], why: str
    ) -> None:
        """Evict the fewest of a stage's peers, if another serving peer of the stage replied and stays.

        Args:
            peers, unreachable: as in `choose_evictions`.
        Raises:
            Conflict, CutOff: as `_evict_one`.
        """
        evicted = choose_evictions(peers, unreachable, self.history.partners)
        stays = [peer for peer in self._view.serving(stage) if peer.name in unreachable and peer not in evicted]
        for peer in evicted if stays else ():
            seconds = await self._evict_one(term, peer, stays[0])
            warn("peer evicted", peer=peer.name, stage=stage, seconds=seconds, why=why)

    def record_summed(self, members: Sequence[Sequence[str]]) -> None:
        """Record the members of a committed step, by stage; forget old failures."""
        self.history.record_summed(members)
        evictions = self._view.evictions
        for name in [name for names in members for name in names if name in evictions]:
            if not self.history.remembers(name):
                del evictions[name]

    async def _evict_one(self, term: int, peer: Peer, stays: Peer) -> float:
        """Remove a peer from the directory. Returns the seconds that it must stay away.

        Raises:
            Conflict: the record of one of the two peers has changed meanwhile.
            CutOff: the directory does not reply.
        """
        view = self._view
        expect = {PEERS + each.name: view.record_revision(each.name) for each in (peer, stays)}
        known = view.evictions.get(peer.name, 0)
        times, seconds = self.history.next_eviction(peer.name, known, self._rules.lease_s)
        put = {EVICTED + peer.name: Eviction(times).pack()}
        lease = await view.directory.grant(seconds, lasting=True)
        await view.directory.transact({LEADER: term, **expect}, put, [PEERS + peer.name, peer.copy_key], lease)
        self.history.record_evicted(peer.name, times)  # not before: a failed transaction evicts no peer
        await view.wait_for(lambda: not view.is_here(peer))
        return seconds


def _partners(name: str, failures: Sequence[Failure]) -> frozenset[str]:
    """The other members with which this one failed to sum."""
    return frozenset().union(*(each.members for each in failures if name in each.members)) - {name}
