"""The dissemination barrier.

Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization".
"""

from collectives.group import Group


async def dissemination_barrier(group: Group) -> None:
    """Return once every rank of the group has called this; every rank then knows that all calls are equal.

    Cost: ceil(log2 n) steps without payload: ceil(log2 n) alpha.
    """
    distance = 1
    while distance < group.size:
        await group.exchange_fingerprints((group.rank + distance) % group.size, (group.rank - distance) % group.size)
        distance *= 2
