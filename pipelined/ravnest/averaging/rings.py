"""One rank's part in the rings between clusters.

A ring has one rank of every cluster, and a channel of its own, so that all rings run at the same time. Each sends its
slice in equally many pieces, once it has them: so rings share a line in proportion to their bytes and end together.
"""

from collections.abc import Sequence
from typing import Any

from collectives.arrays import Range, Vector
from collectives.group import PIECE, Group
from collectives.operations.all_reduce import all_reduce
from pipelined.ravnest.planning.ring_layout import Ring, Share, rings_of
from pipelined.ravnest.planning.stage_sizes import NUMBER_BYTES
from transports import Nursery
from transports.base import Transport
from transports.state import CHANNELS

PIECES = 32
LEAST_PIECE = 4 << 10
"""Into how many pieces a ring cuts its slice of numbers of `NUMBER_BYTES`; smaller ones are not worth their headers."""


class Rings:
    """One rank's part in the rings between clusters; every rank of every cluster constructs it with equal arguments.

    Args:
        transport: this rank's end of the network.
        clusters: as for `rings_of`.
        channel: the channel of the first ring; each following ring has the next number.
    Raises:
        ValueError: as `rings_of`, this rank holds nothing, or there are fewer channels than rings need.
    """

    def __init__(self, transport: Transport, clusters: Sequence[Sequence[Share]], channel: int):
        own_shares = [share for cluster in clusters for share in cluster if share.rank == transport.rank]
        if not own_shares:
            raise ValueError(f"rank {transport.rank} holds no share of any cluster; leave it out of the rings")
        self.shares = sorted((share.low, share.high) for share in own_shares)
        rings = rings_of(clusters)
        if channel + len(rings) > CHANNELS:
            fact = f"rings: {len(rings)}, first channel: {channel}, channels: {CHANNELS}"
            raise ValueError(f"too few channels for the rings ({fact}); begin at a smaller one")
        self._groups = [
            (Group(transport, ring.ranks, channel + number, piece=_piece(ring), ahead=True), (ring.low, ring.high))
            for number, ring in enumerate(rings)
            if transport.rank in ring.ranks
        ]

    async def all_reduce(self, arrays: Sequence[Any], op: str = "mean") -> None:
        """Reduce the shares of this rank with the same elements of the other clusters, in place, all rings at once.

        Shapes: `arrays[i]` has the elements of `shares[i]`, in any shape; all ranks have the same dtype.

        Args:
            arrays: contiguous numpy arrays or CPU torch tensors, one per share.
            op: "sum", "mean" or "max".
        Raises:
            ValueError: not one array per share, or one of another length; nothing was sent. Else as `all_reduce`, and
            the other rings of this rank are cancelled.
        Cost: with C clusters 2(C-1) steps; of each slice a rank sends 2(C-1)/C. The rank with the largest share, of m
            bytes, ends last: 2(C-1) alpha + 2(C-1)/C m beta + (C-1)/C m gamma.
        """
        vectors = [Vector.of(array) for array in arrays]
        sizes = [high - low for low, high in self.shares]
        if [len(vector) for vector in vectors] != sizes:
            lengths = f"elements: {[len(vector) for vector in vectors]}, shares: {sizes}"
            raise ValueError(f"the arrays are not those of this rank's shares ({lengths}); give one a share, in order")
        async with Nursery() as tasks:
            for group, span in self._groups:
                tasks.create_task(all_reduce(group, self._slice(vectors, span), op, "ring"))

    def _slice(self, vectors: Sequence[Vector], span: Range) -> Any:
        """The elements of a ring, as a view of the share that contains them."""
        index = next(index for index, (low, high) in enumerate(self.shares) if low <= span[0] < high)
        start = self.shares[index][0]
        return vectors[index].elements[span[0] - start : span[1] - start]


def _piece(ring: Ring) -> int:
    """Bytes of a piece, the same on all its ranks."""
    return min(PIECE, max(LEAST_PIECE, (ring.high - ring.low) * NUMBER_BYTES // PIECES))
