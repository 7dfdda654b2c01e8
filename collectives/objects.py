"""Plain objects between all ranks of a job, along a binomial tree. msgpack only; never pickle.

With n ranks an exchange takes ceil(log2 n) messages one after another, and no rank sends or receives more than that.
All ranks must take part: each forwards the objects of the ranks below it in the tree. Every rank gets the objects as
msgpack unpacks them, the rank that gave one too: a tuple arrives as a list.
"""

from typing import Any

import msgpack

from collectives.algorithms.parts.binomial_tree import branches
from transports import Nursery, Transport, WireError


async def broadcast_object(transport: Transport, what: str, value: Any = None, source: int = 0) -> Any:
    """Return the object of rank `source` on every rank (the others pass None).

    Args:
        what: a name for this exchange, the same on every rank; two exchanges at the same time need different names.
    Raises:
        WireError: the bytes of the rank above do not unpack; the ranks below have received the same bytes.
    Cost: ceil(log2 n) messages one after another, n - 1 in all.
    """
    parent, children = _neighbours(transport, source)
    packed = msgpack.packb(value) if parent is None else await _take(transport, parent, what)
    async with Nursery() as tasks:
        for child in children:
            tasks.create_task(_send(transport, child, what, packed))
    return _unpack(packed, what, source if parent is None else parent)


async def gather_objects(transport: Transport, what: str, value: Any, target: int = 0) -> list[Any]:
    """Return the objects of all ranks on `target`, in rank order; on the other ranks an empty list.

    Raises:
        WireError: the bytes of a rank below do not unpack, or are not one object per rank of its subtree.
    Cost: ceil(log2 n) messages one after another, n - 1 in all; each rank in between forwards all that it received.
    """
    parent, children = _neighbours(transport, target)
    packed_objects = [msgpack.packb(value)]
    for child in reversed(children):  # the smallest subtree first, so that the objects stay in rank order
        subtree_objects = _unpack(await _take(transport, child, what), what, child)
        if type(subtree_objects) is not list or len(subtree_objects) != _ranks_below(transport, target, child):
            raise _malformed(what, child, f"no list of {_ranks_below(transport, target, child)} objects")
        packed_objects += subtree_objects
    if parent is not None:
        await _send(transport, parent, what, msgpack.packb(packed_objects))
        return []
    size = transport.world_size
    rotated = [_unpack(packed, what, (target + offset) % size) for offset, packed in enumerate(packed_objects)]
    return rotated[size - target :] + rotated[: size - target]


async def first_value(transport: Transport, what: str, value: Any) -> tuple[int, Any] | None:
    """Return, on every rank, the lowest rank with an object other than None, and that object; else None.

    Raises:
        WireError: the bytes of a neighbour in the tree do not unpack, or are not a rank with its object.
    Cost: 2 ceil(log2 n) messages one after another, 2(n - 1) in all, of one object each.
    """
    parent, children = _neighbours(transport, 0)
    lowest = None if value is None else [transport.rank, value]
    for child in reversed(children):
        subtree_value = _rank_and_value(_unpack(await _take(transport, child, what), what, child), what, child)
        lowest = subtree_value if lowest is None else lowest
    if parent is not None:
        await _send(transport, parent, what, msgpack.packb(lowest))
    agreed = _rank_and_value(await broadcast_object(transport, what, lowest), what, 0)
    return None if agreed is None else (agreed[0], agreed[1])


def _neighbours(transport: Transport, root: int) -> tuple[int | None, list[int]]:
    """The parent and the children of this rank in the tree of all ranks from `root`; the largest subtree first."""
    size = transport.world_size
    parent, children = branches((transport.rank - root) % size, size)
    return None if parent is None else (parent + root) % size, [(child + root) % size for child in children]


def _ranks_below(transport: Transport, root: int, child: int) -> int:
    """The ranks in the subtree of a child, itself among them."""
    node = (child - root) % transport.world_size
    return min(node & -node, transport.world_size - node)


async def _send(transport: Transport, peer: int, what: str, packed: bytes) -> None:
    """Send packed objects; `Traffic.object_bytes_sent` is exact, as nothing else runs between the two counts."""
    await transport.send(peer, ("agree", what), packed)
    transport.traffic.object_bytes_sent += len(packed)


async def _take(transport: Transport, source: int, what: str) -> Any:
    blocks = (await transport.receive(source, ("agree", what))).blocks
    if len(blocks) != 1:
        raise _malformed(what, source, f"{len(blocks)} blocks instead of 1")
    return blocks[0].data


def _rank_and_value(pair: Any, what: str, source: int) -> list[Any] | None:
    """A rank and its object as `first_value` forwards them, or None; raises WireError for anything else."""
    if pair is not None and (type(pair) is not list or len(pair) != 2 or type(pair[0]) is not int):
        raise _malformed(what, source, "no rank with its object")
    return pair


def _unpack(packed: Any, what: str, source: int) -> Any:
    try:
        return msgpack.unpackb(packed, strict_map_key=False)
    except (ValueError, TypeError) as error:  # TypeError: not bytes, or a map with a list as a key
        raise _malformed(what, source, f"{type(error).__name__}: {error}") from error


def _malformed(what: str, source: int, fact: str) -> WireError:
    return WireError(
        f"what rank {source} sent for {what!r} does not unpack ({fact}); install one release on every rank"
    )
