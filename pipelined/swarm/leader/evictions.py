"""Evictions: the leader removes members that cannot be reached, or that make rounds fail.

`choose_evictions` takes each peer's report of the peers that it cannot reach. The same reports give the same choice in
every process, and at least one serving peer always stays. A broken link does not show which of its two ends failed. So
the goal is to evict few peers such that the remaining ones all reach each other; a greedy search chooses them.

The transaction holds only while this leader leads and another peer serves the stage. An evicted peer sees its eviction
in the directory, keeps its state, and joins again after a pause that the directory stores (`evicted/NAME`); each pause
is longer than the one before, until the leader forgets the member's failures (`failures`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from functools import partial

from pipelined.membership.directory import Conflict, CutOff
from pipelined.process.reporting.events import warn
from pipelined.swarm.leader.failures import EvictionHistory, Failure
from pipelined.swarm.records.members import EVICTED, LEADER, PEERS, WORKING, EvictionRecord, PeerRecord
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules

MAX_FAILED_ROUNDS = 3
"""Rounds of one step that may fail because of members that are still present, before the leader evicts members."""


def choose_evictions(
    peers: Sequence[PeerRecord], unreachable: Mapping[str, Set[str]], failed_partners: Mapping[str, int]
) -> list[PeerRecord]:
    """The peers to evict, in this order; empty if no serving peer sent a report.

    A link counts as broken if either end reports it. First go the peers without a report, which the leader could not
    reach. Then, one at a time, goes the peer with the most broken links to the remaining peers; among equals the one
    that failed with the most partners before, then one that is leaving anyway, then the youngest. So a peer that
    reports every other peer is evicted first itself, even if it reports them one at a time.

    Args:
        peers: the peers of one stage that hold its state.
        unreachable: by name, the peers that this peer cannot reach; a peer without an entry sent no report.
        failed_partners: by name, the number of partners with which each peer failed so far, including these broken
            links; see `EvictionHistory.partners`.
    """
    remaining = [peer for peer in peers if peer.name in unreachable]
    if not any(peer.phase in WORKING for peer in remaining):
        return []
    evicted = [peer for peer in peers if peer.name not in unreachable]
    while broken := _broken_links(remaining, unreachable):
        candidates = [
            peer for peer in remaining if any(member.phase in WORKING for member in remaining if member is not peer)
        ]
        links = Counter(name for link in broken for name in link)
        chosen = max(candidates, key=partial(_eviction_rank, links, failed_partners))
        if not links[chosen.name]:
            break
        remaining.remove(chosen)
        evicted.append(chosen)
    return evicted


def _eviction_rank(links: Counter[str], partners: Mapping[str, int], peer: PeerRecord) -> tuple[int, int, bool, int]:
    """The peer of the greatest rank is evicted first; see `choose_evictions`.

    Args:
        links: by name, the number of broken links.
    """
    return links[peer.name], partners.get(peer.name, 0), peer.phase not in WORKING, peer.incarnation


def _broken_links(peers: Sequence[PeerRecord], unreachable: Mapping[str, Set[str]]) -> set[frozenset[str]]:
    names = {peer.name for peer in peers}
    return {frozenset((name, partner)) for name in names for partner in unreachable[name] & names if name != partner}


class Evictor:
    """The evictions of one trainer, over all its terms as leader.

    Attributes:
        history: of the failures and evictions that it has seen.
    """

    def __init__(self, view: SwarmView, rules: Rules):
        self._view = view
        self._rules = rules
        self.history = EvictionHistory()

    async def evict_failed(self, term: int, rounds: Sequence[Sequence[Failure]]) -> bool:
        """Whether `MAX_FAILED_ROUNDS` rounds failed; if so, evict the fewest members that cover the failures.

        Args:
            rounds: the failures of each round of a step. Failures of members that have left since do not count.
        """
        view = self._view
        counting = [
            [failure for failure in round_failures if failure.members <= view.peers.keys()] for round_failures in rounds
        ]
        if sum(map(bool, counting)) < MAX_FAILED_ROUNDS:
            return False
        for stage in range(self._rules.stages):
            failures = [failure for round_failures in counting for failure in round_failures if failure.stage == stage]
            if not failures:
                continue
            peers = view.peers_with(stage)
            failed_alone = {name for failure in failures if len(failure.members) == 1 for name in failure.members}
            reports = {peer.name: _partners(peer.name, failures) for peer in peers if peer.name not in failed_alone}
            why = f"{MAX_FAILED_ROUNDS} rounds failed; the last: {failures[-1].why}"
            with suppress(Conflict, CutOff):  # the members changed, or the directory is cut off: make further rounds
                self.history.record_failed(failure.members for failure in failures)
                await self.evict(term, stage, peers, reports, why)
        return True

    async def evict(
        self, term: int, stage: int, peers: Sequence[PeerRecord], unreachable: Mapping[str, Set[str]], why: str
    ) -> None:
        """Evict the fewest of a stage's peers, if another serving peer of the stage replied and stays.

        Args:
            peers, unreachable: as in `choose_evictions`.
        Raises:
            Conflict, CutOff: as `_evict_peer`.
        """
        evicted = choose_evictions(peers, unreachable, self.history.partners)
        staying = [peer for peer in self._view.serving(stage) if peer.name in unreachable and peer not in evicted]
        for peer in evicted if staying else ():
            seconds = await self._evict_peer(term, peer, staying[0])
            warn("peer evicted", peer=peer.name, stage=stage, seconds=seconds, why=why)

    async def _evict_peer(self, term: int, peer: PeerRecord, staying_peer: PeerRecord) -> float:
        """Remove a peer from the directory. Returns the seconds that it must stay away.

        Raises:
            Conflict: the record of one of the two peers has changed meanwhile.
            CutOff: the directory does not reply.
        """
        view = self._view
        revisions = {PEERS + member.name: view.record_revision(member.name) for member in (peer, staying_peer)}
        known_times = view.evictions.get(peer.name, 0)
        times, seconds = self.history.next_eviction(peer.name, known_times, self._rules.lease_s)
        records = {EVICTED + peer.name: EvictionRecord(times).pack()}
        lease = await view.directory.grant(seconds, lasting=True)
        await view.directory.transact({LEADER: term, **revisions}, records, [PEERS + peer.name, peer.copy_key], lease)
        self.history.record_evicted(peer.name, times)  # not before: a failed transaction evicts no peer
        await view.wait_for(lambda: not view.is_present(peer))
        return seconds


def _partners(name: str, failures: Sequence[Failure]) -> frozenset[str]:
    """The other members with which this one failed to sum."""
    return frozenset().union(*(failure.members for failure in failures if name in failure.members)) - {name}
