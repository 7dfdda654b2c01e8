"""Broadcast: the array of one rank is copied to all ranks of the group."""

from typing import Any

from collectives.arrays import Vector
from collectives.group import Group
from collectives.signature import Signature


async def broadcast(group: Group, array: Any, root: int = 0) -> None:
    """Fill the array on every rank, in place, with the array of rank `root` of the group.

    Shapes: the same on every rank.

    Args:
        array: a contiguous numpy array or CPU torch tensor.
        root: a rank of the group.
    Raises:
        ValueError: no such root, or the array is refused; nothing was sent. BrokenGroup: see `Group`. Mismatch: lengths
        or dtypes differ between ranks. TransportError: a rank or link failed; the array is partly filled.
    Cost: a binomial tree, ceil(log2 n) steps; the root sends the array ceil(log2 n) times, all ranks together n - 1
        times: ceil(log2 n) (alpha + m beta). A rank forwards each piece once it has received it, so pieces overlap and
        a long array takes less.
    Source: Thakur, Rabenseifner, Gropp, section 4.4 (short messages).
    """
    if not 0 <= root < group.size:
        raise ValueError(f"no such root (root: {root}, ranks in the group: {group.size}); name one of its ranks")
    vector = Vector.of(array)
    parent, children = branches((group.rank - root) % group.size, group.size)
    async with group.calling(Signature(f"broadcast from {root}", length=len(vector), dtype=vector.dtype)):
        for low, high in group.workspace.pieces(vector, (0, len(vector))):
            piece = vector.bytes(low, high)
            if parent is not None:
                await group.receive((parent + root) % group.size, piece)
            for child in children:
                await group.send((child + root) % group.size, piece)
        if not len(vector):  # compares the calls along the tree, as the first piece does
            if parent is not None:
                await group.greeted_by((parent + root) % group.size)
            for child in children:
                await group.greet_to((child + root) % group.size)


def branches(node: int, size: int) -> tuple[int | None, list[int]]:
    """The parent (None: the root, node 0) and the children, largest subtree first, in a binomial tree of `size` nodes.

    The parent of a node is its number without its lowest set bit; its children each set one bit below that one.
    """
    lowest = node & -node if node else 1 << (size - 1).bit_length()
    below = [1 << bit for bit in reversed(range(lowest.bit_length() - 1))]
    return (node - lowest if node else None), [node + bit for bit in below if node + bit < size]
