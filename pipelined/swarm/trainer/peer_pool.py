"""The peers that one trainer uses: the choice of a peer for each request, time-outs, and bans.

A peer that fails or is late is banned and requested to announce itself again, and the request goes to another.

Source: SWARM, section 3.2 and Appendix C.
"""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import get_args

from pipelined.aio.latency import Backoff, TimeoutEstimator
from pipelined.membership.bans import AnnouncedMember
from pipelined.membership.connection import LocalMember
from pipelined.membership.messaging.client import MemberClient
from pipelined.membership.messaging.messages import Reply
from pipelined.membership.messaging.reasons import Next, Reason
from pipelined.membership.view import RETRY_S, NoLongerValid
from pipelined.process.reporting.events import emit, warn
from pipelined.swarm.protocol.work import Announce, Backward, Evaluate, PassRequest
from pipelined.swarm.records.members import PeerRecord
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from pipelined.swarm.trainer.routing import PassKind, Router
from transports import Nursery
from transports.rpc import Rejected

MIN_PAUSE_S = 1e-3
"""Shortest wait for the end of a ban, in seconds: timers fire a little early, so the wait would repeat many times."""
MAX_PAUSE_S = 10.0
"""Longest pause between two requests to a banned peer to announce itself again, in seconds."""
TOPICS = (*get_args(PassKind), Evaluate.topic)


class StepPassed(Exception):
    """The work of a microbatch has no use any more: its step has passed."""


class MicrobatchNotFinite(Exception):
    """The values of a microbatch are missing, or not finite."""


class PeerPool:
    """The peers that one trainer uses.

    Args:
        local: the trainer's process.
        rules: no reply is late before `rules.lease_s`.

    Attributes:
        replies: by name, the replies of each peer.
    """

    def __init__(self, local: LocalMember, view: SwarmView, client: MemberClient, rules: Rules):
        self._name = local.name
        self._view = view
        self._client = client
        self._clock = local.clock
        self._stages = rules.stages
        self._router = Router(rules.stages, seed=local.name)
        # those in the router, by stage and address
        self._announced_peers = [dict[str, AnnouncedMember]() for _ in range(rules.stages)]
        self._timeouts = {
            (stage, topic): TimeoutEstimator(rules.lease_s) for stage in range(rules.stages) for topic in TOPICS
        }
        self.replies, self._announcing = Counter[str](), set[AnnouncedMember]()

    async def run(self) -> None:
        """Keep the pool up to date with the peers that serve, until cancelled."""
        async with Nursery() as self._tasks:
            await self._follow()

    def banned(self) -> dict[str, float]:
        """See `Bans.remaining`."""
        return dict(self._router.banned(self._clock.now()))

    async def _follow(self) -> None:
        last_changes = [-1] * self._stages
        with self._view.census.departures() as departures:
            for name in self.replies.keys() - self._view.peers.keys():
                del self.replies[name]
            while True:
                changes = [self._view.census.count_changes(stage) for stage in range(self._stages)]
                self._route([stage for stage in range(self._stages) if changes[stage] != last_changes[stage]])
                for name in {peer.name for peer in departures} - self._view.peers.keys():
                    self.replies.pop(name, None)
                departures.clear()
                last_changes = changes
                await self._view.next_change()

    def _route(self, stages: Sequence[int]) -> None:
        """Update the router with the peers of these stages."""
        announced_peers = self._announced_peers
        last_peers = {
            address: (stage, announced) for stage in stages for address, announced in announced_peers[stage].items()
        }
        for stage in stages:
            announced_peers[stage] = {peer.address: self._announced(peer) for peer in self._view.serving(stage)}
        peers = {
            address: (stage, announced) for stage in stages for address, announced in announced_peers[stage].items()
        }
        for _, announced in (last_peers[address] for address in last_peers.keys() - peers.keys()):
            self._router.remove(announced)
        for stage, announced in (entry for address, entry in peers.items() if entry != last_peers.get(address)):
            self._router.add(stage, announced)

    def _announced(self, peer: PeerRecord) -> AnnouncedMember:
        """A peer as the router knows it, which differs after another announcement."""
        return AnnouncedMember(peer.address, self._view.record_revision(peer.name))

    async def request(self, stage: int, request: PassRequest[Reply]) -> tuple[PeerRecord, Reply]:
        """Send a request to one peer of a stage after another until one replies.

        Raises:
            StepPassed: the step has passed.
            MicrobatchNotFinite: an input or output of this peer is not finite; the leader assigns the microbatch again.
        """
        kind: PassKind = "backward" if isinstance(request, Backward) else "forward"
        tried_peers = set[AnnouncedMember]()
        failures = 0
        while True:
            peer = await self._pick(stage, kind)
            announced = self._announced(peer)
            start_s = self._clock.now()
            estimator = self._timeouts[stage, request.topic]
            try:
                with self._router.under_way(announced):
                    reply = await self._client.request(peer, request, estimator.timeout_after(failures))
            except NoLongerValid as error:
                failures += 1
                self._ban(peer, announced, str(error))
                continue
            except Rejected as rejection:
                await self._on_refusal(peer, announced, rejection, tried_peers)
                continue
            seconds = self._clock.now() - start_s
            self._router.observe(announced, kind, seconds)
            estimator.observe(seconds)
            if peer.name in self._view.peers:
                self.replies[peer.name] += 1
            return peer, reply

    async def _on_refusal(
        self, peer: PeerRecord, announced: AnnouncedMember, error: Rejected, tried_peers: set[AnnouncedMember]
    ) -> None:
        """Do what `Reason.next` says, and return to send the request again.

        Args:
            tried_peers: peers that rejected this request, and that are not banned.
        Raises: StepPassed, MicrobatchNotFinite: as `request`.
        """
        reason = Reason.of(error)
        if reason is Reason.NOT_FINITE:
            raise MicrobatchNotFinite(str(error)) from error
        next_action = reason.next if reason else Next.ELSEWHERE
        if next_action is Next.DROP:
            raise StepPassed from error
        if next_action is Next.RETRY or (next_action is Next.OTHERS and announced in tried_peers):
            await self._clock.sleep(RETRY_S)
        elif next_action is Next.OTHERS:
            tried_peers.add(announced)
        else:
            self._ban(peer, announced, str(error))

    def _ban(self, peer: PeerRecord, announced: AnnouncedMember, why: str) -> None:
        """Stop using this peer until it announces itself again, and request that."""
        now = self._clock.now()
        seconds = self._router.ban(announced, now) - now
        if announced not in self._announcing:
            facts = {"peer": peer.name, "stage": peer.stage, "by": self._name, "seconds": seconds, "why": why}
            (warn if self._view.is_present(peer) else emit)("peer banned", **facts)  # that a peer left needs no warning
            self._announcing.add(announced)
            self._tasks.create_task(self._ask_to_announce(peer, announced))

    async def _ask_to_announce(self, peer: PeerRecord, announced: AnnouncedMember) -> None:
        """Repeat the request until the peer has announced itself or left: it may be unreachable now but not later."""
        backoff = Backoff(RETRY_S, MAX_PAUSE_S)
        try:
            while self._view.is_present(peer) and self._announced(peer) == announced:
                with suppress(NoLongerValid, Rejected):
                    await self._client.request(peer, Announce())
                await self._view.next_change(backoff.next())
        finally:
            self._announcing.discard(announced)

    async def _pick(self, stage: int, kind: PassKind) -> PeerRecord:
        """The next peer. Waits while the stage has none to pick; after a wait, picks even a banned one."""
        has_waited = False
        while True:
            now = self._clock.now()
            serving = self._view.serving(stage)
            announced = self._router.pick(stage, kind, now)
            for peer in serving if announced else ():
                if self._announced(peer) == announced:
                    return peer
            if has_waited and announced is None and serving:
                banned = self._router.banned(now)
                return min(serving, key=lambda peer: banned.get(peer.address, 0.0))
            pause_s = min(RETRY_S, max(MIN_PAUSE_S, self._router.available_at(stage, now) - now))
            await self._view.next_change(pause_s if serving else math.inf)
            has_waited = True
