"""Agreement among all ranks of a job: small plain objects travel along a binomial tree. msgpack only; never pickle.

With n ranks an exchange takes ceil(log2 n) messages one after another, and no rank sends or receives more than that.
All ranks must take part: each forwards the objects of the ranks below it in the tree.
"""

from collections.abc import Awaitable
from typing import Any, TypeVar

import msgpack

from collectives.broadcast import branches
from pipelined.aio.nursery import Nursery
from pipelined.errors import UsageError
from transports import Transport, WireError

T = TypeVar("T")


class AgreedError(UsageError):
    """A user error, raised on every rank at the same point of its program."""


async def broadcast(transport: Transport, what: str, thing: Any = None, source: int = 0) -> Any:
    """Return the object of rank `source` on every rank (the others pass None).

    Args:
        what: a name for this exchange, the same on every rank; two exchanges at the same time need different names.
    Raises:
        WireError: the bytes of the rank above do not unpack; the ranks below have received the same bytes.
    Cost: ceil(log2 n) messages one after another, n - 1 in all.
    """
    parent, children = _neighbours(transport, source)
    packed = msgpack.packb(thing) if parent is None else await _take(transport, parent, what)
    async with Nursery() as tasks:
        for child in children:
            tasks.create_task(transport.send(child, ("share", what), packed))
    return thing if parent is None else _unpack(packed, what, parent)


async def gather(transport: Transport, what: str, thing: Any, target: int = 0) -> list[Any]:
    """Return the objects of all ranks on `target`, in rank order; on the other ranks an empty list.

    Raises:
        WireError: the bytes of a rank below do not unpack, or are not one object per rank of its subtree.
    Cost: ceil(log2 n) messages one after another, n - 1 in all; each rank in between forwards all that it received.
    """
    parent, children = _neighbours(transport, target)
    held = [msgpack.packb(thing)]
    for child in reversed(children):  # the smallest subtree first, so that the objects stay in rank order
        below = _unpack(await _take(transport, child, what), what, child)
        if type(below) is not list or len(below) != _ranks_below(transport, target, child):
            raise _strange(what, child, f"no list of {_ranks_below(transport, target, child)} things")
        held += below
    if parent is not None:
        await transport.send(parent, ("share", what), msgpack.packb(held))
        return []
    size = transport.world_size
    others = [_unpack(packed, what, (target + place) % size) for place, packed in enumerate(held[1:], 1)]
    first = size - target
    return [*others[first - 1 :], thing, *others[: first - 1]]


async def first_of(transport: Transport, what: str, thing: Any) -> tuple[int, Any] | None:
    """Return, on every rank, the lowest rank with an object other than None, and that object; else None.

    Raises:
        WireError: the bytes of a neighbour in the tree do not unpack, or are not a rank with its object.
    Cost: 2 ceil(log2 n) messages one after another, 2(n - 1) in all, of one object each.
    """
    parent, children = _neighbours(transport, 0)
    found = None if thing is None else [transport.rank, thing]
    for child in reversed(children):
        below = _found(_unpack(await _take(transport, child, what), what, child), what, child)
        found = below if found is None else found
    if parent is not None:
        await transport.send(parent, ("share", what), msgpack.packb(found))
    first = _found(await broadcast(transport, what, found), what, 0)
    return None if first is None else (first[0], first[1])


async def agree(transport: Transport, what: str, work: Awaitable[T]) -> T:
    """Do work that may fail with a user error on every rank, and agree on the outcome.

    Args:
        what: a name for this exchange, the same on every rank.
        work: may raise UsageError or OSError on any rank.
    Raises:
        AgreedError: on every rank, the error of the lowest rank that failed, with its number unless it is rank 0.
    Cost: 2 ceil(log2 n) messages one after another.
    """
    result, error = None, None
    try:
        result = await work
    except (UsageError, OSError) as caught:
        error = str(caught)
    failed = await first_of(transport, what, error)
    if failed is not None:
        rank, fact = failed
        raise AgreedError(f"rank {rank}: {fact}" if rank else fact)
    return result  # type: ignore[return-value]


def _neighbours(transport: Transport, root: int) -> tuple[int | None, list[int]]:
    """The parent and the children of this rank in the tree of all ranks from `root`; the largest subtree first."""
    size = transport.world_size
    parent, children = branches((transport.rank - root) % size, size)
    return None if parent is None else (parent + root) % size, [(child + root) % size for child in children]


def _ranks_below(transport: Transport, root: int, child: int) -> int:
    """The ranks in the subtree of a child, itself among them."""
    node = (child - root) % transport.world_size
    return min(node & -node, transport.world_size - node)


async def _take(transport: Transport, source: int, what: str) -> Any:
    blocks = (await transport.receive(source, ("share", what))).blocks
    if len(blocks) != 1:
        raise _strange(what, source, f"{len(blocks)} blocks instead of 1")
    return blocks[0].data


def _found(found: Any, what: str, source: int) -> list[Any] | None:
    """A rank and its object as `first_of` forwards them, or None; raises WireError for anything else."""
    if found is not None and (type(found) is not list or len(found) != 2 or type(found[0]) is not int):
        raise _strange(what, source, "no rank with its thing")
    return found


def _unpack(packed: Any, what: str, source: int) -> Any:
    try:
        return msgpack.unpackb(packed, strict_map_key=False)
    except (ValueError, TypeError) as error:  # TypeError: not bytes, or a map with a list as a key
        raise _strange(what, source, f"{type(error).__name__}: {error}") from error


def _strange(what: str, source: int, fact: str) -> WireError:
    return WireError(
        f"what rank {source} sent for {what!r} does not unpack ({fact}); install one release on every rank"
    )
