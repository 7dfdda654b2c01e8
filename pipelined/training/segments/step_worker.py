"""The worker of one step in a segment without a flush, and the messages that all steps of the segment share."""

import asyncio
from collections.abc import Sequence

from pipelined.programs.instructions import Instruction
from pipelined.training.prefetch import Origin, Prefetcher
from pipelined.training.worker import RankContext, TrainWorker
from transports import Message


class Mail:
    """The messages of a segment: activations in their order and gradients in theirs, with no order between the two.

    Args:
        activations, gradients: the prefetchers of the two kinds.
    """

    def __init__(self, activations: Prefetcher, gradients: Prefetcher):
        self._of = {"activation": activations, "gradient": gradients}

    def expect(self, origins: Sequence[Origin]) -> None:
        """Request further messages, in the order in which each kind will be taken."""
        for kind, prefetcher in self._of.items():
            prefetcher.expect([origin for origin in origins if origin[1][0] == kind])

    async def take(self, peer: int, key: tuple[int | str, ...]) -> Message:
        return await self._of[str(key[0])].take(peer, key)

    def arrived(self, peer: int, key: tuple[int | str, ...]) -> bool:
        return self._of[str(key[0])].arrived(peer, key)

    def requested(self, peer: int, key: tuple[int | str, ...]) -> "asyncio.Task[Message]":
        """The task that receives a message; the caller must not cancel it."""
        return self._of[str(key[0])].requests[peer, key]


class StepWorker(TrainWorker):
    """The worker of one step; it takes its messages from the segment's mail."""

    def __init__(self, context: RankContext, step: int, mail: Mail):
        super().__init__(context, step)
        self._prefetcher = mail
        (place,) = self.layout.held_by(self.index)
        each = [Instruction(op, *place, number) for op in "FB" for number in self.layout.microbatches[place[0]]]
        mail.expect([origin for origin in map(self.origin, each) if origin])
