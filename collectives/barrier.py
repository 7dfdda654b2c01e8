"""Barrier: no rank continues before every rank of the group has entered."""

from collectives.group import Group
from collectives.signature import Signature


async def barrier(group: Group) -> None:
    """Return once every rank of the group has called it.

    Raises: BrokenGroup: see `Group`. TransportError: a rank or link failed.
    Cost: ceil(log2 n) steps without payload: ceil(log2 n) alpha.
    """
    async with group.calling(Signature("barrier")):
        await meet(group)


async def meet(group: Group) -> None:
    """As `barrier`, at the start of another collective's call: every rank learns that all calls are equal.

    Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (dissemination).
    """
    distance = 1
    while distance < group.size:
        await group.greet((group.rank + distance) % group.size, (group.rank - distance) % group.size)
        distance *= 2
