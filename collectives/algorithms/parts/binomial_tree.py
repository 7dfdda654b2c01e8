"""A binomial tree over the ranks of a group, with rank 0 as its root, and the broadcast down it.

    size 6      0 -> 4, 2, 1      2 -> 3      4 -> 5

Source: Thakur, Rabenseifner, Gropp, section 4.4 (short messages).
"""

from collectives.arrays import Vector
from collectives.group import Communicator


def branches(rank: int, size: int) -> tuple[int | None, list[int]]:
    """The parent (None: the root) and the children, largest subtree first.

    The parent of a rank is its number without its lowest set bit; its children each set one bit below that one.
    """
    lowest = rank & -rank if rank else 1 << (size - 1).bit_length()
    lower_bits = [1 << bit for bit in reversed(range(lowest.bit_length() - 1))]
    return (rank - lowest if rank else None), [rank + bit for bit in lower_bits if rank + bit < size]


async def broadcast_down(group: Communicator, vector: Vector) -> None:
    """Fill the vector with that of rank 0; a piece is forwarded once it is here, so pieces overlap.

    An empty vector costs a fingerprint along each branch, by which the calls are compared.
    """
    parent, children = branches(group.rank, group.size)
    for low, high in group.workspace.pieces(vector, (0, len(vector))):
        piece = vector.bytes(low, high)
        if parent is not None:
            await group.receive(parent, piece)
        for child in children:
            await group.send(child, piece)
    if parent is not None:
        await group.check_fingerprint(parent)
    for child in children:
        await group.send_fingerprint(child)
