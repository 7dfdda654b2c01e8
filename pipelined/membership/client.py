"""Requests to peers and to the leader, which end when the receiver leaves the swarm or leads no more.

A request to a peer names the incarnation of its receiver. It fails as soon as the directory shows that this incarnation
is gone.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pipelined.aio.clock import Clock
from pipelined.directory import Directory
from pipelined.membership.messages import MemberRequest, Reply, send
from pipelined.membership.records import LeaderRecord, Peer
from pipelined.membership.view import RETRY_S, MembershipView, NoLongerValid
from transports.rpc import Endpoint, Unreachable


@dataclass(frozen=True, slots=True)
class Node:
    """What every process of the system has.

    Args:
        name: unique among the processes of its role.
        endpoint: sends and serves its requests.
        directory: this process's client of the directory.
    """

    name: str
    endpoint: Endpoint
    directory: Directory
    clock: Clock


class PeerClient:
    """Sends the requests of one process to peers and to the leader."""

    def __init__(self, endpoint: Endpoint, view: MembershipView):
        self._endpoint, self._view = endpoint, view

    async def request(self, peer: Peer, request: MemberRequest[Reply], limit: float | None = None) -> Reply:
        """Send a request to a peer, addressed to the incarnation in its record.

        Args:
            limit: time-out in seconds.
        Raises:
            NoLongerValid: the peer is gone, cannot be reached, or timed out; whether it carried out the request is
                unknown.
            Rejected: by the peer's handler, or Malformed: its reply cannot be read.
        """
        async with self._view.while_holds(lambda: self._view.is_here(peer)) as scope:
            if limit is not None:
                scope.reschedule(asyncio.get_running_loop().time() + limit)
            try:
                return await send(self._endpoint, peer.address, request, peer.incarnation)
            except Unreachable as error:
                raise NoLongerValid(str(error)) from error

    async def request_leader(self, leader: LeaderRecord, request: MemberRequest[Reply]) -> Reply:
        """Send a request to the trainer that leads.

        Raises:
            NoLongerValid: it does not lead any more.
            Rejected: by its handler, or Malformed: its reply cannot be read. Unreachable: as `Endpoint.request`.
        """
        async with self._view.while_holds(lambda: self._view.leader == leader):
            return await send(self._endpoint, leader.address, request)

    async def request_until_reply(self, peer: Peer, request: MemberRequest[Any]) -> None:
        """Repeat a request until a reply comes or the peer is gone.

        Raises:
            Rejected: by the peer's handler.
        """
        while self._view.is_here(peer):
            with suppress(NoLongerValid):
                await self.request(peer, request)
                return
            await self._view.next_change(RETRY_S)
