"""Small plain objects between all ranks of a job: shared from one, or gathered at one. msgpack only; never pickle."""

from typing import Any

import msgpack

from transports import Transport


async def share(transport: Transport, what: str, thing: Any = None, source: int = 0) -> Any:
    """Give every rank what `source` holds (the others pass None).

    Args:
        what: a name for this exchange, the same on every rank and not in use twice at once.
    Cost: world_size - 1 messages out of the source.
    """
    if transport.rank != source:
        return await _take(transport, source, what)
    packed = msgpack.packb(thing)
    for peer in range(transport.world_size):
        if peer != source:
            await transport.send(peer, ("share", what), packed)
    return thing


async def gather(transport: Transport, what: str, thing: Any, target: int = 0) -> list[Any]:
    """Bring what each rank holds to `target`, in rank order; the others get an empty list."""
    if transport.rank != target:
        await transport.send(target, ("share", what), msgpack.packb(thing))
        return []
    return [thing if p == target else await _take(transport, p, what) for p in range(transport.world_size)]


async def _take(transport: Transport, source: int, what: str) -> Any:
    frame = await transport.receive(source, ("share", what))
    return msgpack.unpackb(frame.blocks[0].data, strict_map_key=False)
