"""Auto: the algorithm with the lowest measured price; without prices `shared`, or else the lowest modelled price.

The choice depends only on the nodes, bytes, links and prices of the call, and on whether the ranks share memory. All of
these are equal on all ranks, so all ranks make the same choice without exchanging messages.
"""

from collectives.algorithms.base import AllReduceAlgorithm
from collectives.algorithms.registry import ALL_REDUCE, note_choice
from collectives.arrays import Vector
from collectives.group import Group
from collectives.reduction import Reduction


class AutoAllReduce(AllReduceAlgorithm):
    """One of the other algorithms, by price."""

    async def run(self, group: Group, vector: Vector, reduction: Reduction) -> None:
        """Run the algorithm that `choose_for` names; the signature names that of the first of several blocks."""
        chosen = "shared"
        if group.prices or not group.shared.memory:
            allocated = group.prices is not None and group.shared.find(vector) is not None
            chosen = await choose_for(group, vector.nbytes, allocated)
        note_choice(group, chosen)
        await ALL_REDUCE.find(chosen).run(group, vector, reduction)

    async def is_available(self, group: Group) -> bool:
        """No: it is one of the others."""
        return False


async def choose_for(group: Group, nbytes: int, allocated: bool = False) -> str:
    """The algorithm that all ranks of the group choose for an array of `nbytes`, inside a running call.

    Args:
        allocated: whether the array lies in memory that all ranks map; prices were measured without that.
    """
    if group.prices is not None and not allocated:
        return group.prices.cheapest(nbytes)
    return await ALL_REDUCE.choose(group, nbytes)
