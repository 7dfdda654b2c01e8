"""All-to-all: every rank sends one array to every rank."""

from collections.abc import Sequence
from typing import Any

from collectives.arrays import Vector
from collectives.group import Group
from collectives.signature import Signature
from transports.wire.arrays import Block


async def all_to_all(group: Group, outgoing: Sequence[Any], incoming: Sequence[Any]) -> None:
    """Send `outgoing[r]` to each rank r, and receive into `incoming[r]` the array that rank r sends to this rank.

    Shapes: any, 0 elements allowed; `incoming[r]` here has as many bytes as `outgoing[rank]` on rank r.

    Args:
        outgoing: one array per rank; only read.
        incoming: one contiguous, writable array per rank; shares no memory with `outgoing`.
    Raises:
        ValueError: not one array per rank, or an array is refused; nothing was sent. BrokenGroup: see `Group`.
        Mismatch: the sizes of the array between two ranks differ (the error names both); its receiver raises this.
        TransportError: a rank or link failed. After the last two, `incoming` is partly filled.
    Cost: n - 1 steps, each of two ranks' greetings and then their arrays; a rank sends each array for another rank
        once: (n - 1) (2 alpha + m/n beta).
    Source: Thakur, Rabenseifner, Gropp, section 4.2 (long messages).
    """
    if not len(outgoing) == len(incoming) == group.size:
        counts = f"outgoing: {len(outgoing)}, incoming: {len(incoming)}, ranks: {group.size}"
        raise ValueError(f"all_to_all needs one array a rank both ways ({counts}); pass an empty array to send nothing")
    sent = [Block.of(array).data for array in outgoing]
    taken = [Vector.of(array).data for array in incoming]
    if sent[group.rank].nbytes != taken[group.rank].nbytes:
        sizes = f"outgoing: {sent[group.rank].nbytes}, incoming: {taken[group.rank].nbytes}"
        raise ValueError(f"a rank's array for itself does not fit (bytes: {sizes}); make both of one size")
    async with group.calling(Signature("all_to_all")):
        taken[group.rank][:] = sent[group.rank]
        for step in range(1, group.size):
            to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
            await group.greet(to, source, _signature_of(sent[to]), _signature_of(taken[source]))
            await group.exchange(to, sent[to], source, taken[source])


def _signature_of(array: memoryview) -> Signature:
    """The signature that the sender and the receiver of one array compare, also of an empty one."""
    return Signature("all_to_all", length=array.nbytes, dtype="bytes")
