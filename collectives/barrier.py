"""Barrier: no rank continues before every rank of the group has entered."""

from collectives.group import Group


async def barrier(group: Group) -> None:
    """Return once every rank of the group has called it.

    Raises: BrokenGroup: see `Group`. TransportError: a rank or link failed.
    Cost: ceil(log2 n) steps of one byte: ceil(log2 n) alpha.
    Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization" (dissemination).
    """
    sign, heard = memoryview(b"!"), memoryview(bytearray(1))
    async with group.calling("barrier"):
        distance = 1
        while distance < group.size:
            to, source = (group.rank + distance) % group.size, (group.rank - distance) % group.size
            await group.exchange(to, sign, source, heard)
            distance *= 2
