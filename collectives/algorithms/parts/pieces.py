"""Ranges of a vector sent, received or reduced, piece by piece; the only extra memory is one piece of scratch."""

from collections.abc import Sequence

from collectives.arrays import Range, Vector
from collectives.group import Communicator
from collectives.reduction import Reduction


async def send_pieces(group: Communicator, target: int, vector: Vector, *spans: Range) -> None:
    """Send the elements of these ranges directly from the array, one range after another."""
    for span in spans:
        for low, high in group.workspace.pieces(vector, span):
            await group.send(target, vector.bytes(low, high))


async def send_segments(group: Communicator, target: int, vector: Vector, segments: Sequence[Range]) -> None:
    """As `send_pieces`; if all ranges are empty, the fingerprint alone: a rank called differently may expect more."""
    await send_pieces(group, target, vector, *segments)
    await group.send_fingerprint(target)


async def receive_pieces(group: Communicator, source: int, vector: Vector, *spans: Range) -> None:
    """Receive what `send_pieces` sends, directly into the elements of these ranges."""
    for span in spans:
        for low, high in group.workspace.pieces(vector, span):
            await group.receive(source, vector.bytes(low, high))


async def reduce_pieces(group: Communicator, source: int, vector: Vector, *spans: Range, reduction: Reduction) -> None:
    """Reduce what `send_pieces` sends into the elements of these ranges, each piece while it is in the cache."""
    scratch = group.workspace.scratch(vector, max((high - low for low, high in spans), default=0))
    for span in spans:
        for low, high in group.workspace.pieces(vector, span):
            await group.receive(source, scratch.bytes(0, high - low))
            reduction.into(vector, (low, high), scratch)
