"""Small plain objects between all ranks of a job, along a binomial tree. msgpack only; never pickle.

With n ranks an exchange takes ceil(log2 n) messages one after another, and no rank sends or receives more of them. All
ranks must take part, as each passes on what the ranks below it in the tree are to get, or hold.
"""

from typing import Any

import msgpack

from collectives.broadcast import branches
from pipelined.nursery import Nursery
from transports import Transport


async def share(transport: Transport, what: str, thing: Any = None, source: int = 0) -> Any:
    """Give every rank what `source` holds (the others pass None).

    Args:
        what: a name for this exchange, the same on every rank and not in use twice at once.
    Cost: ceil(log2 n) messages one after another, n - 1 in all.
    """
    parent, children = _neighbours(transport, source)
    packed = msgpack.packb(thing) if parent is None else await _take(transport, parent, what)
    async with Nursery() as tasks:
        for child in children:
            tasks.create_task(transport.send(child, ("share", what), packed))
    return thing if parent is None else _unpack(packed)


async def gather(transport: Transport, what: str, thing: Any, target: int = 0) -> list[Any]:
    """Bring what each rank holds to `target`, in rank order; the others get an empty list.

    Cost: ceil(log2 n) messages one after another, n - 1 in all; each rank on the way passes on all that it received.
    """
    parent, children = _neighbours(transport, target)
    held = [msgpack.packb(thing)]
    for child in reversed(children):  # the smallest subtree first, so that what is held stays in the order of ranks
        held += _unpack(await _take(transport, child, what))
    if parent is not None:
        await transport.send(parent, ("share", what), msgpack.packb(held))
        return []
    others = [_unpack(packed) for packed in held[1:]]
    first = transport.world_size - target
    return [*others[first - 1 :], thing, *others[: first - 1]]


async def first_of(transport: Transport, what: str, thing: Any) -> tuple[int, Any] | None:
    """What the lowest rank holds that holds anything but None, with that rank, on every rank; None if no rank does.

    Cost: 2 ceil(log2 n) messages one after another, 2(n - 1) in all, of one thing each.
    """
    parent, children = _neighbours(transport, 0)
    found = None if thing is None else [transport.rank, thing]
    for child in reversed(children):
        below = _unpack(await _take(transport, child, what))
        found = below if found is None else found
    if parent is not None:
        await transport.send(parent, ("share", what), msgpack.packb(found))
    found = await share(transport, what, found)
    return found and (found[0], found[1])


def _neighbours(transport: Transport, root: int) -> tuple[int | None, list[int]]:
    """The ranks above and below this one in the tree of all ranks from `root`; the largest subtree first."""
    size = transport.world_size
    parent, children = branches((transport.rank - root) % size, size)
    return None if parent is None else (parent + root) % size, [(child + root) % size for child in children]


async def _take(transport: Transport, source: int, what: str) -> Any:
    return (await transport.receive(source, ("share", what))).blocks[0].data


def _unpack(packed: Any) -> Any:
    return msgpack.unpackb(packed, strict_map_key=False)
