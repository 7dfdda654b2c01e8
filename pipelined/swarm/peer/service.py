"""The requests that a peer serves: a table with the handler and the size limits of each.

A request is rejected if it cannot be read, if it is meant for another incarnation of the peer, if its sender does not
have the role that it needs, or if it is larger than the replica can need.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from pipelined.membership.messaging.messages import Done, MemberReply, MemberRequest, MemberRole, Ping, handle_requests
from pipelined.membership.messaging.reasons import Reason
from pipelined.membership.view import RETRY_S
from pipelined.state.stages.messages import FetchChunk, FetchManifest, FetchTotals
from pipelined.swarm.peer.all_reduce import IN_FLIGHT
from pipelined.swarm.peer.components import PeerComponents
from pipelined.swarm.peer.device_watchdog import DeviceLate
from pipelined.swarm.peer.replica import Replica
from pipelined.swarm.protocol.rounds import (
    Inherit,
    Prepare,
    Reduce,
    ReportRound,
    Resume,
    RoundReport,
    RoundRequest,
    SendPart,
)
from pipelined.swarm.protocol.work import Announce, Backward, Evaluate, Forward
from pipelined.swarm.records.members import ObserverRecord, PeerRecord, TrainerRecord
from pipelined.swarm.records.view import SwarmView
from transports.rpc import Handler, Party, Rejected, Request, Response


class SenderCheck:
    """The checks of one peer.

    Args:
        view: of the members.
    """

    def __init__(self, view: SwarmView):
        self._view = view

    async def admit(self, request: MemberRequest[Any], sender: Party, stage: int) -> None:
        """Reject a sender without the role that its request needs.

        Args:
            stage: of this peer; a sender that must be a peer must hold or join this stage.
        Raises:
            Rejected: "stranger". A request of a round must come from the leader of the round's term.
        """
        try:
            async with asyncio.timeout(RETRY_S):
                await self._view.wait_for(lambda: self._is_listed(request, sender, stage))
        except TimeoutError:
            raise Rejected(Reason.STRANGER, address=sender.address) from None

    def _is_listed(self, request: MemberRequest[Any], sender: Party, stage: int) -> bool:
        view = self._view
        if isinstance(request, RoundRequest):
            leader = view.leader
            leader_key = (view.leader_revision, leader.address) if leader is not None else None
            return leader_key == (request.round.term, sender.address)
        trainers, observers = view.trainers.values(), view.observers.values()
        peers = [peer for peer in view.peers.values() if peer.stage == stage]
        members_by_role: Mapping[MemberRole, Iterable[PeerRecord | TrainerRecord | ObserverRecord]] = {
            MemberRole.TRAINER: trainers,
            MemberRole.PEER: peers,
            MemberRole.READER: [*peers, *observers],
        }
        return any(member.address == sender.address for member in members_by_role[request.sender])


T = TypeVar("T")
MAX_PASSES, MAX_ROUNDS = 256, 16
"""Requests of one sender that may wait here at once: their arrays take memory meanwhile."""


class Handling(NamedTuple):
    """How one kind of request is handled.

    Args:
        reply: returns the reply of a replica to a request and its sender.
        max_bytes: largest size of its arrays, in bytes.
        max_waiting: requests of one sender that may wait at once.
    """

    reply: Callable[[Replica, Any, Party], Awaitable[MemberReply]]
    max_bytes: int = 0
    max_waiting: int = MAX_ROUNDS


class PeerService:
    """Serves the requests to one peer, whichever stage it holds at the time.

    Attributes:
        replica: the one that it holds; None: every request for its stage is rejected.
        incarnation: of this peer; a request to another incarnation is rejected.
    """

    def __init__(self, components: PeerComponents):
        self._endpoint = components.local.endpoint
        self._view = components.view
        self._senders = SenderCheck(components.view)
        self._presence, self._probe, self._watchdog = components.presence, components.probe, components.watchdog
        self._rules = components.rules
        self.replica: Replica | None = None
        self.incarnation = 0

    def open(self) -> None:
        """Reply to requests from now on."""
        self._handle_stage_requests()
        handle_requests(self._endpoint, Announce, self._announce, MAX_ROUNDS)
        handle_requests(self._endpoint, Ping, self._ping, MAX_ROUNDS)

    def hold(self, replica: Replica) -> None:
        """Hold this replica from now on; the limits of the requests' sizes follow from it."""
        self.replica = replica
        self._handle_stage_requests()

    def drop_replica(self) -> None:
        """Hold no replica from now on; what waits for the replica ends."""
        if self.replica:
            self.replica.give_up("its peer holds it no longer")
        self.replica = None

    def _handle_stage_requests(self) -> None:
        for kind, handling in self._handlings().items():
            self._endpoint.handle(kind.topic, self._respond(kind, handling), handling.max_bytes, handling.max_waiting)

    def _handlings(self) -> Mapping[type[MemberRequest[Any]], Handling]:
        array_bytes = self.replica.passes.max_bytes if self.replica else 0
        sum_bytes = self.replica.stage.sums.nbytes if self.replica else 0
        chunk_bytes = self._rules.chunk_bytes if self.replica else 0
        return {
            Forward: Handling(lambda replica, request, _: replica.passes.forward(request), array_bytes, MAX_PASSES),
            Backward: Handling(
                lambda replica, request, _: replica.passes.backward(request), 2 * array_bytes, MAX_PASSES
            ),
            Evaluate: Handling(
                lambda replica, request, _: replica.passes.evaluate(request), 2 * array_bytes, MAX_PASSES
            ),
            Prepare: Handling(lambda replica, request, _: self._in_time(replica.rounds.prepare(request))),
            Resume: Handling(lambda replica, request, _: replica.rounds.resume(request)),
            Reduce: Handling(lambda replica, request, _: self._in_time(replica.rounds.reduce(request))),
            ReportRound: Handling(lambda replica, request, _: self._report_round(replica, request)),
            SendPart: Handling(
                lambda replica, request, sender: replica.rounds.receive_part(request, sender),
                chunk_bytes,
                2 * IN_FLIGHT,
            ),
            Inherit: Handling(
                lambda replica, request, _: replica.handover.inherit(request), sum_bytes + 16 * self._rules.batch, 1
            ),
            FetchManifest: Handling(lambda replica, _, sender: self._in_time(replica.manifest(sender))),
            FetchChunk: Handling(
                lambda replica, request, sender: replica.donor.chunk(request, sender), max_waiting=2 * IN_FLIGHT
            ),
            FetchTotals: Handling(lambda replica, request, sender: replica.donor.totals(request, sender)),
        }

    def _respond(self, kind: type[MemberRequest[Any]], handling: Handling) -> Handler:
        async def respond(request: Request) -> Response:
            message, incarnation = kind.parse(request)
            await self._senders.admit(message, request.sender, self._require_replica(incarnation).index)
            return (await handling.reply(self._require_replica(incarnation), message, request.sender)).response()

        return respond

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises Rejected: "device late"."""
        try:
            return await self._watchdog.unless_late(work)
        except DeviceLate as error:
            raise Rejected(Reason.DEVICE_LATE, doing=str(error)) from error

    def _require_replica(self, incarnation: int) -> Replica:
        """The replica, if a request is meant for this incarnation of the peer."""
        if incarnation != self.incarnation:
            raise Rejected(Reason.WRONG_INCARNATION, incarnation=self.incarnation)
        if self.replica is None:
            raise Rejected(Reason.NO_STAGE)
        return self.replica

    async def _announce(self, request: Announce, sender: Party) -> Done:
        await self._senders.admit(request, sender, 0)
        self._presence.request()
        return Done()

    async def _report_round(self, replica: Replica, request: ReportRound) -> RoundReport:
        """Which members of its stage this peer cannot reach, and for which the sum waits here."""
        others = [peer for peer in self._view.peers_with(replica.index) if peer.name != replica.name]
        unreachable = await self._probe.find_unreachable(others)
        # the probes take time, in which a process that was stopped can read what has arrived
        awaited = self.replica.rounds.awaited(request.round) if self.replica else RoundReport()
        return replace(awaited, unreachable=tuple(unreachable))

    async def _ping(self, request: Ping, sender: Party) -> Done:
        return Done()
