"""Checks whether the members of a round reach one another, and has the leader evict the fewest that block it.

A long round alone evicts no member: it continues while all members reach the leader and one another. See
`pipelined.swarm.leader.evictions` for what happens to a member that fails the check.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from pipelined.aio.clock import Clock
from pipelined.aio.latency import UNMEASURED, Backoff, TimeoutEstimator
from pipelined.aio.tasks import beside, with_timeout
from pipelined.membership.directory import Conflict, CutOff
from pipelined.membership.messaging.client import MemberClient, Probe
from pipelined.membership.view import NoLongerValid
from pipelined.process.reporting.events import emit, warn
from pipelined.swarm.leader.evictions import Evictor
from pipelined.swarm.leader.failures import MAX_DOUBLINGS
from pipelined.swarm.leader.term import resign
from pipelined.swarm.protocol.rounds import ReportRound, RoundName, RoundReport
from pipelined.swarm.records.members import PeerRecord
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from transports import Nursery
from transports.rpc import Rejected

T = TypeVar("T")
StagePeers = Sequence[Sequence[PeerRecord]]
UNREACHED = "the leader or another member of its stage cannot reach it"
WITHHELD = "it or another member of its stage has brought nothing to the sum for more than {seconds:.3g} s"
MAX_LEASES = 16
"""Longest interval between two checks of a round, in leases."""


class ConnectivityCheck:
    """The checks of one trainer, over all its terms as leader.

    Attributes:
        evictor: removes the members that fail a check, or many rounds.
    """

    def __init__(self, view: SwarmView, client: MemberClient, rules: Rules, clock: Clock):
        self._view = view
        self._client = client
        self._rules = rules
        self._clock = clock
        self._probe = Probe(client, clock, rules.lease_s)
        self._resigned = False
        self.evictor = Evictor(view, rules)
        self._sums = TimeoutEstimator(rules.lease_s)

    async def run_checked(
        self,
        work: Coroutine[Any, Any, T],
        name: RoundName,
        members: StagePeers | None = None,
        spread_s: float = 0.0,
    ) -> T:
        """Return the result of one part of a round; meanwhile check its members, at growing intervals.

        Args:
            members: by stage; None: the sum has not begun: none is evicted, but the leader must reach all stages.
            spread_s: seconds over which members spread their parts of a sum.
        """
        return await beside(work, self._keep_checking(name, members, spread_s))

    def record_summed(self, members: Sequence[Sequence[str]], seconds: float) -> None:
        """Record the members of a committed step, by stage, and the seconds of its sums; forget old failures."""
        self._sums.observe(seconds)
        history, evictions = self.evictor.history, self._view.evictions
        history.record_summed(members)
        for name in [name for names in members for name in names if name in evictions]:
            if not history.remembers(name):
                del evictions[name]

    async def wait_after_resignation(self) -> None:
        """After giving up leadership, wait one lease, so that another trainer can lead."""
        if self._resigned:
            self._resigned = False
            await self._clock.sleep(self._rules.lease_s)

    async def _keep_checking(self, name: RoundName, members: StagePeers | None, spread_s: float) -> None:
        backoff = Backoff(self._rules.lease_s, MAX_LEASES * self._rules.lease_s)
        elapsed_s = 0.0
        while True:
            pause = backoff.next()
            await self._probe.clock.sleep(pause)
            elapsed_s += pause
            if members is not None:
                emit("round lasts", round=str(name), seconds=elapsed_s, peers=sum(map(len, members)))
            with suppress(Conflict, CutOff):  # the members changed, or the directory is cut off: check again
                await self._check(name, members, spread_s)

    async def _check(self, name: RoundName, members: StagePeers | None, spread_s: float) -> None:
        view = self._view
        stages = members or [view.peers_with(stage) for stage in range(self._rules.stages)]
        unreachable = set(await self._probe.find_unreachable(peer for peers in stages for peer in peers))
        present = [[peer for peer in peers if view.is_present(peer)] for peers in stages]
        if self._is_to_resign(present, unreachable):
            self._resigned, why = True, "no peer of a stage, or less than half of all peers, can be reached"
            warn("leadership given up", term=name.term, why=why)
            await resign(view, name.term)
        elif members is not None:
            reachable = [peer for peers in present for peer in peers if peer.name not in unreachable]
            reports = await self._request_reports(name, reachable)
            await self._evict_reported(name.term, present, reports, partial(self._limit, spread_s))

    async def _evict_reported(
        self, term: int, stages: StagePeers, reports: Mapping[str, RoundReport], limit: Callable[[str], float]
    ) -> None:
        """Evict the fewest members of each stage, so that no other reports one that it cannot reach or waits for."""
        overdue_members = overdue(reports, limit)
        broken = {name: overdue_members[name].union(report.unreachable) for name, report in reports.items()}
        for stage, peers in enumerate(stages):
            names = {peer.name for peer in peers}
            reporting = names & reports.keys()
            withholding = {
                member for name in reporting for member in overdue_members[name].difference(reports[name].unreachable)
            }
            why = WITHHELD.format(seconds=min(map(limit, withholding))) if withholding else UNREACHED
            self.evictor.history.record_failed({name, member} for name in reporting for member in names & broken[name])
            await self.evictor.evict(term, stage, peers, broken, why)

    def _limit(self, spread_s: float, name: str) -> float:
        """Seconds for which a member may contribute nothing to a sum; doubled for each earlier eviction in a row."""
        limit_s = max(UNMEASURED * self._rules.lease_s, self._sums.timeout or 0.0) + spread_s
        return limit_s * 2 ** min(self.evictor.history.evictions(name), MAX_DOUBLINGS)

    async def _request_reports(self, name: RoundName, peers: Sequence[PeerRecord]) -> dict[str, RoundReport]:
        """The replies by name; a missing member could not be reached."""
        async with Nursery() as tasks:
            requests = {peer.name: tasks.create_task(self._request_report(name, peer)) for peer in peers}
        replies = {peer: task.result() for peer, task in requests.items()}
        return {peer: report for peer, report in replies.items() if report is not None}

    async def _request_report(self, name: RoundName, peer: PeerRecord) -> RoundReport | None:
        """A peer's reply; None: unreachable. A member that has left, or refuses to reply, reports no other member."""
        try:
            patience = 2 * self._probe.patience_s
            request = self._client.request(peer, ReportRound(name))
            return await with_timeout(self._probe.clock, patience, request)
        except TimeoutError:
            return None
        except (NoLongerValid, Rejected):
            return RoundReport()

    def _is_to_resign(self, stages: StagePeers, unreachable: Set[str]) -> bool:
        """Whether this leader reaches no peer of a stage, or fewer than half of all, and another trainer could lead."""
        unreachable_stage = any(peers and {peer.name for peer in peers} <= unreachable for peers in stages)
        return (unreachable_stage or 2 * len(unreachable) > sum(map(len, stages))) and len(self._view.trainers) > 1


def overdue(reports: Mapping[str, RoundReport], limit: Callable[[str], float]) -> dict[str, frozenset[str]]:
    """The members for which each member has waited too long, by its name.

    Args:
        reports: replies by name; a missing member could not be reached.
        limit: returns the seconds for which the member of this name may contribute nothing.
    """
    overdue_members = dict[str, frozenset[str]]()
    for name, report in reports.items():
        late_senders = {member for member, seconds in report.parts.items() if seconds > limit(member)}
        late_owners = {member for member, seconds in report.totals.items() if seconds > limit(member)}
        overdue_members[name] = frozenset(
            late_senders | {member for member in late_owners if member in reports and not reports[member].parts}
        )
    return overdue_members
