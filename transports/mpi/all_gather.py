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
    first_rank, *other_ranks = ranks
    gather_key, spread_key = (*key, "up"), (*key, "down")
    if transport.rank != first_rank:
        await transport.send(first_rank, gather_key, note=value)
        return list((await transport.receive(first_rank, spread_key)).note)
    messages = await asyncio.gather(*(transport.receive(rank, gather_key) for rank in other_ranks))
    values = [value, *(message.note for message in messages)]
    await asyncio.gather(*(transport.send(rank, spread_key, note=values) for rank in other_ranks))
    return values
