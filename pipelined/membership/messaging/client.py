"""Requests to members: they end when the receiver leaves the system.

A request to a member names the incarnation of its receiver. It fails as soon as the directory shows that this
incarnation is gone.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pipelined.membership.messaging.messages import MemberRequest, Reply, send
from pipelined.membership.view import RETRY_S, Member, MembershipView, NoLongerValid
from transports.rpc import Endpoint, Unreachable


class MemberGone(NoLongerValid):
    """The directory does not list this incarnation of the member any more."""


class MemberUnreachable(NoLongerValid):
    """No connection to the member, or no reply to probes."""


class ReplyLate(NoLongerValid):
    """The member did not reply in time."""


class MemberClient:
    """Sends the requests of one process to members."""

    def __init__(self, endpoint: Endpoint, view: MembershipView):
        self._endpoint, self._view = endpoint, view

    async def request(self, member: Member, request: MemberRequest[Reply], limit: float | None = None) -> Reply:
        """Send a request to a member, addressed to the incarnation in its record.

        Args:
            limit: time-out in seconds.
        Raises:
            MemberGone, MemberUnreachable, ReplyLate: whether the member carried out the request is unknown.
            Rejected: by the member's handler, or Malformed: its reply cannot be read.
        """
        try:
            async with self._view.while_holds(lambda: self._view.is_present(member)) as scope:
                if limit is not None:
                    scope.reschedule(asyncio.get_running_loop().time() + limit)
                return await send(self._endpoint, member.address, request, member.incarnation)
        except Unreachable as error:
            raise MemberUnreachable(str(error)) from error
        except NoLongerValid as error:
            if limit is not None and self._view.is_present(member):
                raise ReplyLate(f"no reply to {request.topic} in {limit:.3g} s") from error
            raise MemberGone(f"{member.name} has left") from error

    async def request_while(self, holds: Callable[[], bool], address: str, request: MemberRequest[Reply]) -> Reply:
        """Send a request to any incarnation of the member at this address, while a condition on the view holds.

        Raises:
            NoLongerValid: the condition does not hold any more.
            Rejected: by its handler, or Malformed: its reply cannot be read. Unreachable: as `Endpoint.request`.
        """
        async with self._view.while_holds(holds):
            return await send(self._endpoint, address, request)

    async def request_until_reply(self, member: Member, request: MemberRequest[Any]) -> None:
        """Repeat a request until a reply comes or the member is gone.

        Raises:
            Rejected: by the member's handler.
        """
        while self._view.is_present(member):
            with suppress(NoLongerValid):
                await self.request(member, request)
                return
            await self._view.next_change(RETRY_S)
