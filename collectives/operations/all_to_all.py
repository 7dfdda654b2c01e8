"""All-to-all: every rank sends one array to every rank."""

from collections.abc import Sequence
from typing import Any

from collectives.algorithms import ALL_TO_ALL
from collectives.arrays import Vector
from collectives.group import Group
from collectives.group.signature import Signature
from transports.wire.arrays import Block


async def all_to_all(group: Group, outgoing: Sequence[Any], incoming: Sequence[Any], algorithm: str = "auto") -> None:
    """Send `outgoing[r]` to each rank r, and receive into `incoming[r]` the array that rank r sends to this rank.

    Shapes: any, 0 elements allowed; `incoming[r]` here has as many bytes as `outgoing[rank]` on rank r.

    Args:
        outgoing: one array per rank; only read.
        incoming: one contiguous, writable array per rank; shares no memory with `outgoing`.
        algorithm: the name of an algorithm (`collectives.algorithms.ALL_TO_ALL`); equal on all ranks.
    Raises:
        ValueError: not one array per rank, or an array or the algorithm is refused; nothing was sent.
        BrokenGroup: see `Group`.
        Mismatch: the sizes of the array between two ranks differ (the error names both); its receiver raises this.
        TransportError: a rank or link failed. After the last two, `incoming` is partly filled.
    Cost: see each algorithm; a rank sends each array for another rank once.
    """
    if not len(outgoing) == len(incoming) == group.size:
        counts = f"outgoing: {len(outgoing)}, incoming: {len(incoming)}, ranks: {group.size}"
        raise ValueError(f"all_to_all needs one array a rank both ways ({counts}); pass an empty array to send nothing")
    outgoing_data = [Block.of(array).data for array in outgoing]
    incoming_data = [Vector.of(array).data for array in incoming]
    if outgoing_data[group.rank].nbytes != incoming_data[group.rank].nbytes:
        sizes = f"outgoing: {outgoing_data[group.rank].nbytes}, incoming: {incoming_data[group.rank].nbytes}"
        raise ValueError(f"a rank's array for itself does not fit (bytes: {sizes}); make both of one size")
    ALL_TO_ALL.check(algorithm)
    async with group.call(Signature("all_to_all", algorithm=algorithm)):
        runner = await ALL_TO_ALL.resolve(algorithm, group, 0)  # all ranks know no size in common
        await runner.run(group, outgoing_data, incoming_data)
