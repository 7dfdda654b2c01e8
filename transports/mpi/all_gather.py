"""All-gather of small values by messages, for a group that has nothing faster yet."""

import asyncio
from collections.abc import Sequence

from transports.base import Key, Transport


async def all_gather_values(transport: Transport, ranks: Sequence[int], key: Key, value: bytes = b"") -> list[bytes]:
    """The values of all ranks, in the order of `ranks`; each of them calls this. Returns when all have called it.

    Args:
        key: distinguishes the messages from all others; a word is appended for each direction.
    Raises: as `Transport.receive`.
    Cost: one message from each rank to the first, and one back.
    """
    first, *others = ranks
    up, down = (*key, "up"), (*key, "down")
    if transport.rank != first:
        await transport.send(first, up, note=value)
        return list((await transport.receive(first, down)).note)
    received = await asyncio.gather(*(transport.receive(rank, up) for rank in others))
    values = [value, *(message.note for message in received)]
    await asyncio.gather(*(transport.send(rank, down, note=values) for rank in others))
    return values
