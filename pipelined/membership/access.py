"""Who may ask a peer what: trainers for passes, the conductor for rounds, peers of the stage for sums and state,
observers for state.

The one rule: whoever the directory does not have is a stranger, whatever key it holds, and is told so before anything
that it brought is decoded, kept or waited for. News of a newcomer may be under way, so that is waited for, not long.
"""

import asyncio
from collections.abc import Callable, Iterable

from pipelined.membership.view import RETRY_S, MembershipView
from pipelined.swarm.protocol import field, read_round
from pipelined.swarm.records import Observer, Peer, Trainer
from transports.rpc import Question, Refusal


class Admission:
    """One peer's door.

    Args:
        view: says who is a member.
    """

    def __init__(self, view: MembershipView):
        self._view = view

    async def trainer(self, question: Question, stage: int) -> None:
        """Raises Refusal: "stranger", it is no trainer of this swarm."""
        await self._known(question, lambda: _among(question, self._view.trainers.values()))

    async def peer(self, question: Question, stage: int) -> None:
        """Raises Refusal: "stranger", it is no peer that holds, or comes to hold, this stage."""
        await self._known(question, lambda: _among(question, self._peers(stage)))

    async def reader(self, question: Question, stage: int) -> None:
        """Raises Refusal: "stranger", it is neither a peer of this stage nor an observer."""
        observers = self._view.observers
        await self._known(question, lambda: _among(question, [*self._peers(stage), *observers.values()]))

    async def conductor(self, question: Question, stage: int) -> None:
        """Raises Refusal: "stranger", it does not lead under the term that it names."""
        (term, _), view = read_round(field(question.note, "round")), self._view

        def leads() -> bool:
            leader = view.conductor
            return leader is not None and (view.conductor_revision, leader.address) == (term, question.asker.address)

        await self._known(question, leads)

    def _peers(self, stage: int) -> list[Peer]:
        return [peer for peer in self._view.peers.values() if peer.stage == stage]

    async def _known(self, question: Question, holds: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(RETRY_S):
                await self._view.wait_for(holds)
        except TimeoutError:
            raise Refusal("stranger", address=question.asker.address) from None


def _among(question: Question, members: Iterable[Peer | Trainer | Observer]) -> bool:
    return any(member.address == question.asker.address for member in members)
