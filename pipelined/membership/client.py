"""Requests to peers, which end when the peer leaves the swarm.

A request names the incarnation of its receiver. It fails as soon as the directory shows that this incarnation is gone.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pipelined.aio.clock import Clock
from pipelined.directory import Directory
from pipelined.membership.records import Peer
from pipelined.membership.view import RETRY_S, MembershipView, NoLongerValid
from transports.rpc import Endpoint, Response, Unreachable


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


class Asking:
    """Sends the requests of one process to peers."""

    def __init__(self, endpoint: Endpoint, view: MembershipView):
        self._endpoint, self._view = endpoint, view

    async def request(self, who: Peer, topic: str, *arrays: Any, limit: float | None = None, **note: Any) -> Response:
        """Send a request to a peer, addressed to the incarnation in its record.

        Args:
            limit: time-out in seconds.
        Raises:
            NoLongerValid: the peer is gone, cannot be reached, or timed out; whether it carried out the request is
                unknown.
            Rejected: by the peer's handler.
        """
        async with self._view.while_holds(lambda: self._view.is_here(who)) as scope:
            if limit is not None:
                scope.reschedule(asyncio.get_running_loop().time() + limit)
            try:
                return await self._endpoint.request(who.address, topic, *arrays, note={"to": who.incarnation, **note})
            except Unreachable as error:
                raise NoLongerValid(str(error)) from error

    async def insist(self, who: Peer, topic: str, **note: Any) -> None:
        """Repeat a request until a reply comes or the peer is gone.

        Raises:
            Rejected: by the peer's handler.
        """
        while self._view.is_here(who):
            with suppress(NoLongerValid):
                await self.request(who, topic, **note)
                return
            await self._view.next_change(RETRY_S)
