"""Barrier: no rank continues before every rank of the group has entered."""

from collectives.algorithms.parts.dissemination import dissemination_barrier
from collectives.group import Group
from collectives.group.signature import Signature


async def barrier(group: Group) -> None:
    """Return once every rank of the group has called it.

    Raises:
        BrokenGroup: see `Group`.
        TransportError: a rank or link failed.
    Cost: ceil(log2 n) steps without payload: ceil(log2 n) alpha.
    """
    async with group.call(Signature("barrier")):
        await dissemination_barrier(group)
