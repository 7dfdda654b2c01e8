"""Sum, mean and max of two pieces into a third, for every dtype. The one rule: no memory is allocated.

Operands keep the order they are given in: where two ranks reduce the same elements, both name the lower rank's
first, so that NaN payloads and the signs of zeros agree too. Knows nothing of ranks or messages.
"""

import sys
from typing import Any

import numpy as np

from collectives.arrays import Vector
from collectives.partition import Range

# dtypes that each op makes sense for: floating, complex, signed, unsigned, boolean
ACCEPTED = {"sum": "fciu", "mean": "fc", "max": "fiub"}
REMEDY = {"mean": "use sum and divide, or cast to a float", "sum": "cast to an integer", "max": "reduce real numbers"}


class Reduction:
    """How two pieces of one dtype become one.

    Args:
        op: "sum", "mean" (a sum, divided once when it is whole) or "max" (a NaN anywhere wins).
        vector: what is going to be reduced; only its dtype matters.
    Raises:
        ValueError: an unknown op (the known are listed), or one that the dtype has no meaning for.
    """

    __slots__ = ("_combine", "_divide", "op")

    def __init__(self, op: str, vector: Vector):
        if op not in ACCEPTED:
            raise ValueError(f"unknown op {op!r}; known: {', '.join(sorted(ACCEPTED))}")
        in_numpy = isinstance(vector.elements, np.ndarray)
        kind = vector.elements.dtype.kind if in_numpy else "f"
        if kind not in ACCEPTED[op]:
            raise ValueError(f"no {op} of {vector.dtype}; {REMEDY[op]}")
        maths = np if in_numpy else sys.modules["torch"]
        self.op = op
        self._combine = maths.maximum if op == "max" else maths.add
        self._divide = maths.divide

    def combine(self, first: Any, second: Any, out: Any) -> None:
        """Reduce `first` and `second` element by element into `out`, which may be either of them."""
        self._combine(first, second, out=out)

    def into(self, vector: Vector, span: Range, other: Vector, mine_first: bool = True) -> None:
        """Reduce the first elements of another vector into those of `span`."""
        low, high = span
        mine, theirs = vector.elements[low:high], other.elements[: high - low]
        first, second = (mine, theirs) if mine_first else (theirs, mine)
        self.combine(first, second, mine)

    def finish(self, elements: Any, size: int) -> None:
        """Make of the reduced elements of `size` ranks the result: only a mean still has to be divided."""
        if self.op == "mean":
            self._divide(elements, size, out=elements)
