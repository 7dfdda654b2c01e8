"""Broadcast: the array of one rank is copied to all ranks of the group."""

from typing import Any

from collectives.algorithms.parts.binomial_tree import broadcast_down
from collectives.arrays import Vector
from collectives.group import Group
from collectives.group.signature import Signature


async def broadcast(group: Group, array: Any, root: int = 0) -> None:
    """Fill the array on every rank, in place, with the array of rank `root` of the group.

    Shapes: the same on every rank.

    Args:
        array: a contiguous numpy array or CPU torch tensor.
        root: a rank of the group.
    Raises:
        ValueError: no such root, or the array is refused; nothing was sent.
        BrokenGroup: see `Group`.
        Mismatch: lengths or dtypes differ between ranks.
        TransportError: a rank or link failed; the array is partly filled.
    Cost: a binomial tree, ceil(log2 n) steps; the root sends the array ceil(log2 n) times, all ranks together n - 1
        times: ceil(log2 n) (alpha + m beta). A rank forwards each piece once it has received it, so pieces overlap and
        a long array takes less.
    Source: Thakur, Rabenseifner, Gropp, section 4.4 (short messages).
    """
    if not 0 <= root < group.size:
        raise ValueError(f"no such root (root: {root}, ranks in the group: {group.size}); name one of its ranks")
    vector = Vector.of(array)
    async with group.call(Signature(f"broadcast from {root}", length=len(vector), dtype=vector.dtype)):
        await broadcast_down(group.subgroup([(root + number) % group.size for number in range(group.size)]), vector)
