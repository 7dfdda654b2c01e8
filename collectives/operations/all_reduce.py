"""`all_reduce`: checks the arguments, enters a call of the group, and runs the requested algorithm."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from collectives.algorithms import ALL_REDUCE, AUTO, algorithm_for, parse_choice
from collectives.algorithms.parts import widening
from collectives.algorithms.parts.dissemination import dissemination_barrier
from collectives.arrays import Vector
from collectives.cost_model import MeasuredTimes
from collectives.group import Group
from collectives.group.signature import Signature
from collectives.reduction import Reduction

Run = Callable[[Group, Vector, Reduction], Awaitable[None]]


async def all_reduce(
    group: Group, array: Any, op: str = "sum", algorithm: str = "auto", accumulate: str | None = None
) -> None:
    """Reduce the arrays of all ranks of the group, in place; every rank ends with the same bits.

    Shapes: the same on every rank, 0 elements allowed.

    Args:
        array: a contiguous numpy array or CPU torch tensor.
        op: "sum", "mean" (a sum divided once, at the end) or "max" (NaN if any operand is NaN).
        algorithm: the name of an algorithm, or several by size (`collectives.algorithms.choice`); equal on all ranks.
        accumulate: "float32" to sum float16 and bfloat16 in float32 and round once, at the end (float32 arrays are
            always summed in float32); None to sum in the array's own dtype. Equal on all ranks.
    Raises:
        ValueError: the algorithm, the op, the array or its accumulation is refused, or the transport does not offer
            the algorithm; nothing of the array was sent and the group stays usable.
        BrokenGroup: an earlier collective of the group ended half done.
        Mismatch: lengths, dtypes, ops or algorithms differ between ranks; it names both calls.
        TransportError: a rank or link failed.
        After the last two, and when cancelled, the group is broken and the array holds partial sums. Other ranks may
        wait until the owner of the transport aborts it, or until their transport detects the loss of this rank.
    Cost: see each algorithm; with float32 accumulation, half-width floats are sent as float32 (see `parts.widening`).
        With t seconds for m bytes on n ranks, algbw is m/t and busbw is 2(n-1)/n m/t.
    """
    parse_choice(algorithm)  # refuse an invalid choice before anything else
    vector = Vector.of(array)
    request = op, algorithm, accumulate, vector.dtype, len(vector), type(vector.elements)
    run, reduction, signature = group.workspace.cached_recent(
        request, lambda: _resolve(vector, op, algorithm, accumulate)
    )
    if group.size == 1:
        return  # the array is its own sum
    async with group.call(signature):
        if not len(vector):
            await dissemination_barrier(group)
        else:
            await run(group, vector, reduction)


def _resolve(vector: Vector, op: str, algorithm: str, accumulate: str | None) -> tuple[Run, Reduction, Signature]:
    """The algorithm to run, its reduction, and the signature that must be equal on all ranks."""
    algorithm = algorithm_for(algorithm, vector.nbytes)
    run: Run = _Auto().run if algorithm == AUTO else ALL_REDUCE.find(algorithm).run
    reduction = Reduction(op, vector.elements)
    if widening.check(accumulate, vector):
        run, op = partial(widening.reduce_widened, run), f"{op} in {accumulate}"
    return run, reduction, Signature("all_reduce", op, len(vector), vector.dtype, algorithm)


class _Auto:
    """The algorithm that `auto` means, chosen again only for other bytes or other measured times."""

    def __init__(self) -> None:
        self._problem: tuple[int, MeasuredTimes | None] | None = None
        self._name = ""

    async def run(self, group: Group, vector: Vector, reduction: Reduction) -> None:
        measured = group.measured
        if measured is not None and group.shared.find(vector) is not None:
            measured = None  # times are those of arrays in ordinary memory
        problem = vector.nbytes, measured
        if self._problem != problem:
            self._name = await ALL_REDUCE.choose(group, *problem)
            self._problem = problem
        await ALL_REDUCE.record_choice(group, self._name).run(group, vector, reduction)
