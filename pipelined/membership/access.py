"""Access control of a peer: each request names the role that its sender must have in the directory.

A request from a process that the directory does not list in that role is rejected as "stranger" before it waits for
anything else. The directory's change for a new process may still be on its way, so the check waits for up to `RETRY_S`
seconds.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from pipelined.membership.messages import MemberRequest, MemberRole, RoundRequest
from pipelined.membership.reasons import Reason
from pipelined.membership.records import Observer, Peer, TrainerRecord
from pipelined.membership.view import RETRY_S, MembershipView
from transports.rpc import Party, Rejected


class SenderCheck:
    """The checks of one peer.

    Args:
        view: of the members.
    """

    def __init__(self, view: MembershipView):
        self._view = view

    async def admit(self, request: MemberRequest[Any], sender: Party, stage: int) -> None:
        """Refuse a sender without the role that its request needs.

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
            led_by = (view.leader_revision, leader.address) if leader is not None else None
            return led_by == (request.round.term, sender.address)
        trainers, observers = view.trainers.values(), view.observers.values()
        peers = [peer for peer in view.peers.values() if peer.stage == stage]
        listed: Mapping[MemberRole, Iterable[Peer | TrainerRecord | Observer]] = {
            MemberRole.TRAINER: trainers,
            MemberRole.PEER: peers,
            MemberRole.READER: [*peers, *observers],
        }
        return any(member.address == sender.address for member in listed[request.sender])
