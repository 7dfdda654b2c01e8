"""The way in: takes the group's turn, then runs the algorithm asked for. Knows no algorithm."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from collectives.all_reduce import accumulate as _wide
from collectives.all_reduce.registry import algorithm_for, choices, known
from collectives.arrays import Vector
from collectives.group import Group
from collectives.reduction import Reduction

Algorithm = Callable[[Group, Vector, Reduction], Awaitable[None]]


async def all_reduce(
    group: Group, array: Any, op: str = "sum", algorithm: str = "auto", accumulate: str | None = None
) -> None:
    """Reduce the arrays of all ranks of the group, in place; every rank ends with the same bits.

    Shapes: the same on every rank, 0 elements allowed.

    Args:
        array: a contiguous numpy array or CPU torch tensor.
        op: "sum", "mean" (a sum divided once, at the end) or "max" (a NaN anywhere wins).
        algorithm: the name of a file in this package, or one by size (see `registry.choices`); equal on all ranks.
        accumulate: "float32" to sum float16 and bfloat16 in float32 and round once, at the end (a float32 array is
            summed so anyway); None sums in the array's own dtype. Equal on all ranks.
    Raises:
        ValueError: the algorithm, the op, the array or its accumulation is refused; nothing was sent and
            the group is as before.
        BrokenGroup: an earlier collective of the group was left half done.
        Mismatch: lengths, dtypes, ops or algorithms differ between ranks; it names both calls.
        TransportError: a rank or link failed.
        After the last two, and when cancelled, the group is broken and the array holds partial sums. Other ranks may
        wait until the owner of the transport aborts it, or is told of its end.
    Cost: see each algorithm; accumulated in float32, half-width floats travel as such (see `_wide`).
        With t seconds for m bytes on n ranks, algbw is m/t and busbw is 2(n-1)/n m/t.
    """
    choices(algorithm)  # what makes no sense is refused before anything else
    vector = Vector.of(array)
    asked = op, algorithm, accumulate, vector.dtype, len(vector), type(vector.elements)
    run, reduction, signature = group.workspace.cached_last(asked, lambda: _meant(vector, op, algorithm, accumulate))
    async with group.calling(signature):
        if not len(vector):
            await group.barrier()
        else:
            await run(group, vector, reduction)


def _meant(vector: Vector, op: str, algorithm: str, accumulate: str | None) -> tuple[Algorithm, Reduction, str]:
    """What runs, with what, and what all ranks must mean alike."""
    algorithm = algorithm_for(algorithm, vector.nbytes)
    run, reduction = known(algorithm).all_reduce, Reduction(op, vector)
    if _wide.check(accumulate, vector):
        run, op = partial(_wide.all_reduce, run), f"{op} in {accumulate}"
    return run, reduction, f"all_reduce by {algorithm}: {op} of {len(vector)} {vector.dtype}"
