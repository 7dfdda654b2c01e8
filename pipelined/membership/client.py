"""Asking a member for as long as it is one.

The one rule: nobody who has left, or is not who was meant, keeps us waiting.
"""

import asyncio
from contextlib import suppress
from typing import Any

from pipelined.membership.view import RETRY_S, MembershipView, NoLongerValid
from pipelined.swarm.records import Peer
from transports.rpc import Endpoint, Response, Unreachable


class Asking:
    """One process's questions to peers."""

    def __init__(self, endpoint: Endpoint, view: MembershipView):
        self._endpoint, self._view = endpoint, view

    async def request(self, who: Peer, topic: str, *arrays: Any, limit: float | None = None, **note: Any) -> Response:
        """Ask a peer under the incarnation that we know.

        Args:
            limit: seconds after which it is late.
        Raises:
            NoLongerValid: it is gone, cannot be reached, or is late; whether it did what was asked is unknown.
            Rejected: as its handler says.
        """
        async with self._view.while_holds(lambda: self._view.is_here(who)) as scope:
            if limit is not None:
                scope.reschedule(asyncio.get_running_loop().time() + limit)
            try:
                return await self._endpoint.request(who.address, topic, *arrays, note={"to": who.incarnation, **note})
            except Unreachable as error:
                raise NoLongerValid(str(error)) from error

    async def insist(self, who: Peer, topic: str, **note: Any) -> None:
        """Ask again whenever no answer came, until one does or the peer is gone.

        Raises:
            Rejected: as its handler says.
        """
        while self._view.is_here(who):
            with suppress(NoLongerValid):
                await self.request(who, topic, **note)
                return
            await self._view.next_change(RETRY_S)
