"""Checks whether the members of a round reach one another; the leader evicts the fewest members that block the round.

A long round alone evicts no member: it continues while all members reach the leader and one another. The leader removes
a member from the directory if it fails this check, or if `MOST_FAILED` attempts of one step failed because of it. The
transaction holds only while this leader leads and another peer serves the stage. An evicted peer sees its eviction in
the directory, keeps its state, and joins again after a pause that the directory stores (`evicted/NAME`); each pause is
longer than the one before; see `pipelined.swarm.leader.failures`.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, TypeVar

from pipelined.aio.backoff import Backoff
from pipelined.aio.clock import Clock
from pipelined.aio.events import emit, warn
from pipelined.aio.latency import UNKNOWN, TimeoutEstimator
from pipelined.aio.nursery import Nursery, beside, with_timeout
from pipelined.directory import Conflict, CutOff
from pipelined.membership.view import NoLongerValid
from pipelined.swarm.config import Rules
from pipelined.swarm.leader.evictions import choose_evictions
from pipelined.swarm.leader.failures import MOST_DOUBLINGS, Failure, History
from pipelined.swarm.messaging.client import MemberClient, Probe
from pipelined.swarm.protocol.rounds import Reach, ReportReach, RoundName
from pipelined.swarm.records.members import EVICTED, LEADER, PEERS, Eviction, Peer
from pipelined.swarm.records.view import SwarmView
from transports.rpc import Rejected

T = TypeVar("T")
MOST_FAILED = 3
"""Attempts of one step that may fail because of members that are still present, before the leader evicts members."""
UNREACHED = "the leader or another member of its stage cannot reach it"
WITHHELD = "it or another member of its stage has brought nothing to the sum for more than {seconds:.3g} s"
MOST_LEASES = 16
"""Longest interval between two checks of a round, in leases."""


class ConnectivityCheck:
    """The checks of one trainer, over all its terms as leader."""

    def __init__(self, view: SwarmView, client: MemberClient, rules: Rules, clock: Clock):
        self._view, self._client, self._rules, self._clock = view, client, rules, clock
        self._probe, self._resigned = Probe(client, clock, rules.lease_s), False
        self._history, self._sums = History(), TimeoutEstimator(rules.lease_s)

    async def during(
        self,
        work: Coroutine[Any, Any, T],
        name: RoundName,
        members: Sequence[Sequence[Peer]] | None = None,
        spread: float = 0.0,
    ) -> T:
        """Return the result of one part of a round; meanwhile check its members, at growing intervals.

        Args:
            members: by stage, the members; None: the sum has not begun, and no member is evicted, but the leader must
                reach every stage.
            spread: seconds over which members spread their parts of a sum.
        """
        return await beside(work, self._keep_checking(name, members, spread))

    async def evict(self, term: int, attempts: Sequence[Sequence[Failure]]) -> bool:
        """Evict the fewest members that cover the failures, after `MOST_FAILED` failed attempts. Returns whether so
        many have failed.

        Args:
            attempts: the failures of each attempt of a step. Failures of members that have left since do not count.
        """
        view = self._view
        blamed = [[each for each in failed if each.members <= view.peers.keys()] for failed in attempts]
        if sum(map(bool, blamed)) < MOST_FAILED:
            return False
        for stage in range(self._rules.stages):
            failures = [each for failed in blamed for each in failed if each.stage == stage]
            peers = view.holding(stage)
            alone = {name for each in failures if len(each.members) == 1 for name in each.members}
            reports = {peer.name: _partners(peer.name, failures) for peer in peers if peer.name not in alone}
            if not failures:
                continue
            why = f"{MOST_FAILED} attempts failed; the last: {failures[-1].why}"
            with suppress(Conflict, CutOff):  # the members changed, or the directory is cut off: make further attempts
                self._history.failed(each.members for each in failures)
                evicted = choose_evictions(peers, reports, self._history.partners)
                await self._evict(term, stage, evicted, reports.keys(), why)
        return True

    def summed(self, members: Sequence[Sequence[str]], seconds: float) -> None:
        """Record the members of a committed step, by stage, and the seconds of its sums; forget old failures."""
        self._sums.observe(seconds)
        self._history.summed(members)
        evictions = self._view.evictions
        for name in [name for names in members for name in names if name in evictions]:
            if not self._history.remembers(name):
                del evictions[name]

    async def wait_after_resignation(self) -> None:
        """After giving up leadership, wait one lease, so that another trainer can lead."""
        if self._resigned:
            self._resigned = False
            await self._clock.sleep(self._rules.lease_s)

    async def _keep_checking(self, name: RoundName, members: Sequence[Sequence[Peer]] | None, spread: float) -> None:
        backoff, passed = Backoff(self._rules.lease_s, MOST_LEASES * self._rules.lease_s), 0.0
        while True:
            pause = backoff.next()
            await self._probe.clock.sleep(pause)
            passed += pause
            if members is not None:
                emit("round lasts", round=str(name), seconds=passed, peers=sum(map(len, members)))
            with suppress(Conflict, CutOff):  # the members changed, or the directory is cut off: check again
                await self._check(name, members, spread)

    async def _check(self, name: RoundName, members: Sequence[Sequence[Peer]] | None, spread: float) -> None:
        view = self._view
        stages = members or [view.holding(stage) for stage in range(self._rules.stages)]
        unreachable = set(await self._probe.unreachable(peer for peers in stages for peer in peers))
        here = [[peer for peer in peers if view.is_here(peer)] for peers in stages]
        if self._is_to_resign(here, unreachable):
            await self._resign(name.term)
        elif members is not None:
            reachable = [peer for peers in here for peer in peers if peer.name not in unreachable]
            reports = await self._reports(name, reachable)
            limit = lambda name: self._limit(name, spread)  # noqa: E731
            waits = overdue(reports, limit)
            unreached = {each: waits[each].union(reports[each].unreachable) for each in reports}
            for stage, peers in enumerate(here):
                names = {peer.name for peer in peers}
                reporting = names & reports.keys()
                held = {other for each in reporting for other in waits[each].difference(reports[each].unreachable)}
                why = WITHHELD.format(seconds=min(map(limit, held))) if held else UNREACHED
                self._history.failed({each, other} for each in names for other in names & unreached.get(each, set()))
                evicted = choose_evictions(peers, unreached, self._history.partners)
                await self._evict(name.term, stage, evicted, reports.keys(), why)

    def _limit(self, name: str, spread: float) -> float:
        """Seconds for which a member may contribute nothing to a sum; doubled for each earlier eviction in a row."""
        least = max(UNKNOWN * self._rules.lease_s, self._sums.limit or 0.0) + spread
        return least * 2 ** min(self._history.evictions(name), MOST_DOUBLINGS)

    async def _reports(self, name: RoundName, peers: Sequence[Peer]) -> dict[str, Reach]:
        """The replies by name; a missing member could not be reached."""
        async with Nursery() as tasks:
            requests = {peer.name: tasks.create_task(self._ask(name, peer)) for peer in peers}
        return {peer: reach for peer, task in requests.items() if (reach := task.result()) is not None}

    async def _ask(self, name: RoundName, peer: Peer) -> Reach | None:
        """A peer's reply; None: unreachable. A member that has left, or refuses to reply, reports no other member."""
        try:
            patience = 2 * self._probe.patience_s
            request = self._client.request(peer, ReportReach(name))
            return await with_timeout(self._probe.clock, patience, request)
        except TimeoutError:
            return None
        except (NoLongerValid, Rejected):
            return Reach()

    def _is_to_resign(self, stages: Sequence[Sequence[Peer]], unreachable: Set[str]) -> bool:
        """Whether this leader reaches no peer of a stage, or fewer than half of all, and another trainer could lead."""
        unreachable_stage = any(peers and {peer.name for peer in peers} <= unreachable for peers in stages)
        return (unreachable_stage or 2 * len(unreachable) > sum(map(len, stages))) and len(self._view.trainers) > 1

    async def _resign(self, term: int) -> None:
        """Give up leadership: another trainer may reach the peers that this one cannot."""
        self._resigned = True
        warn("leadership given up", term=term, why="no peer of a stage, or less than half of all peers, can be reached")
        await self._view.directory.transact({LEADER: term}, {}, [LEADER])

    async def _evict(self, term: int, stage: int, peers: Sequence[Peer], reports: Set[str], why: str) -> None:
        """Evict these peers, if another serving peer of the stage replied and stays."""
        stays = [peer for peer in self._view.serving(stage) if peer.name in reports and peer not in peers]
        for peer in peers if stays else ():
            seconds = await self._evict_one(term, peer, stays[0])
            warn("peer evicted", peer=peer.name, stage=stage, seconds=seconds, why=why)

    async def _evict_one(self, term: int, peer: Peer, stays: Peer) -> float:
        """Remove a peer from the directory. Returns the seconds that it must stay away.

        Raises:
            Conflict: the record of one of the two peers has changed meanwhile.
            CutOff: the directory does not reply.
        """
        view = self._view
        expect = {PEERS + each.name: view.record_revisions[each.name] for each in (peer, stays)}
        known = view.evictions.get(peer.name, 0)
        times, seconds = self._history.next_eviction(peer.name, known, self._rules.lease_s)
        put = {EVICTED + peer.name: Eviction(times).pack()}
        lease = await view.directory.grant(seconds, lasting=True)
        await view.directory.transact({LEADER: term, **expect}, put, [PEERS + peer.name, peer.index], lease)
        self._history.evicted(peer.name, times)  # not before: a failed transaction evicts no peer
        await view.wait_for(lambda: not view.is_here(peer))
        return seconds


def _partners(name: str, failures: Sequence[Failure]) -> frozenset[str]:
    """The other members with which this one failed to sum."""
    return frozenset().union(*(each.members for each in failures if name in each.members)) - {name}


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
