"""Access control of a peer: trainers may request passes, the leader rounds, peers of the stage sums and state,
observers state.

A request from a process that the directory does not list is rejected as "stranger" before its content is decoded,
stored or waited for. The directory's change for a new process may still be on its way, so the check waits for up to
`RETRY_S` seconds.
"""

import asyncio
from collections.abc import Callable, Iterable

from pipelined.membership.records import Observer, Peer, Trainer
from pipelined.membership.view import RETRY_S, MembershipView
from transports.rpc import Rejected, Request


class Admission:
    """The checks of one peer.

    Args:
        view: of the members.
    """

    def __init__(self, view: MembershipView):
        self._view = view

    async def trainer(self, request: Request, stage: int) -> None:
        """Raises Rejected: "stranger": the sender is not a trainer of this swarm."""
        await self._known(request, lambda: _among(request, self._view.trainers.values()))

    async def peer(self, request: Request, stage: int) -> None:
        """Raises Rejected: "stranger": the sender is not a peer that holds or joins this stage."""
        await self._known(request, lambda: _among(request, self._peers(stage)))

    async def reader(self, request: Request, stage: int) -> None:
        """Raises Rejected: "stranger": the sender is neither a peer of this stage nor an observer."""
        observers = self._view.observers
        await self._known(request, lambda: _among(request, [*self._peers(stage), *observers.values()]))

    async def leader(self, request: Request, term: int) -> None:
        """Raises Rejected: "stranger": the sender is not the leader of this term, which its request names."""
        view = self._view

        def leads() -> bool:
            leader = view.leader
            return leader is not None and (view.leader_revision, leader.address) == (term, request.sender.address)

        await self._known(request, leads)

    def _peers(self, stage: int) -> list[Peer]:
        return [peer for peer in self._view.peers.values() if peer.stage == stage]

    async def _known(self, request: Request, holds: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(RETRY_S):
                await self._view.wait_for(holds)
        except TimeoutError:
            raise Rejected("stranger", address=request.sender.address) from None


def _among(request: Request, members: Iterable[Peer | Trainer | Observer]) -> bool:
    return any(member.address == request.sender.address for member in members)
