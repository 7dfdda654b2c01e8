"""Why a node refuses a round: a slice of another length, or with numbers that are not finite. Imports torch.

A node checks its own snapshot before it sends any of it, and afterwards the average that the rings left.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence

import torch

from collectives.errors import Mismatch
from pipelined.ravnest.planning.ring_layout import Share, rings_of
from pipelined.ravnest.records.generation import Generation
from transports import SizeMismatch


class SliceRefused(Exception):
    """What a node has for a round, or got for it, is no slice of the model.

    Args:
        cluster: of the node that sent it.
    """

    def __init__(self, cluster: int, fact: str):
        super().__init__(fact)
        self.cluster = cluster


class Senders:
    """The nodes of all clusters as one of them receives slices of theirs.

    Args:
        shares: of the nodes; see `shares_of`.
        rank: of this node.
    """

    def __init__(self, generation: Generation, shares: Sequence[Sequence[Share]], rank: int):
        self._names = [(place.cluster, stage_place.holder.name) for place, stage_place in generation.all_places]
        self._shares, self._rank = shares, rank

    def refusal(self, rank: int, fact: str) -> SliceRefused:
        """The error that names the node that sent it."""
        cluster, name = self._names[rank]
        return SliceRefused(cluster, f"{name} (cluster {cluster}): {fact}")

    async def check_own(self, snapshot: torch.Tensor) -> None:
        """Raises SliceRefused: a number of this node's snapshot is not finite."""
        if not await asyncio.to_thread(are_finite, [snapshot]):
            raise self.refusal(self._rank, "its snapshot has numbers that are not finite")

    async def wait_for_rings(self, rings: Awaitable[None]) -> None:
        """Wait for the rings. Raises SliceRefused: another node sent bytes of another length."""
        try:
            await rings
        except (SizeMismatch, Mismatch) as error:
            raise self.refusal(error.peer, f"its slice has another length ({error})") from error

    async def check_average(self, average: torch.Tensor) -> None:
        """Raises SliceRefused: a number of this node's average is not finite, though its own snapshot's all were."""
        if not await asyncio.to_thread(are_finite, [average]):
            (own_share,) = (share for shares in self._shares for share in shares if share.rank == self._rank)
            element = own_share.low + int(torch.isfinite(average).logical_not().nonzero()[0])
            ranks = next(ring.ranks for ring in rings_of(self._shares) if ring.low <= element < ring.high)
            sender = ranks[ranks.index(self._rank) - 1]
            raise self.refusal(sender, "it sent, or passed on, a slice with numbers that are not finite")

    async def check_state(self, rank: int, state: Mapping[str, torch.Tensor]) -> None:
        """Raises SliceRefused: a number of the state that a node sent is not finite."""
        if not await asyncio.to_thread(are_finite, state.values()):
            raise self.refusal(rank, "its optimizer's state has numbers that are not finite")


def are_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all numbers are. Cost: no memory."""
    numbers = (tensor for tensor in tensors if tensor.numel() and tensor.is_floating_point())
    return all(bool(torch.isfinite(end)) for tensor in numbers for end in torch.aminmax(tensor.detach()))
