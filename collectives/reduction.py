"""Sum, mean and max of two pieces into a third, for every dtype, without allocating memory.

Arrays are reduced by their own library, numpy or torch; `collectives.arrays` decides which of them a flat vector has.

Operands keep the order they are given in. Where two ranks reduce the same elements, both pass the lower rank's
elements first, so that NaN payloads and the signs of zeros are equal too.
"""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from collectives.arrays import Range, Vector
from transports import wire_name

# kinds of dtypes that each op accepts: floating, complex, signed, unsigned, boolean
ACCEPTED = {"sum": "fciu", "mean": "fc", "max": "fiub"}
REMEDY = {"mean": "use sum and divide, or cast to a float", "sum": "cast to an integer", "max": "reduce real numbers"}


class Reduction:
    """The reduction of two pieces of one dtype into one.

    Args:
        op: "sum", "mean" (a sum, divided once when it is complete) or "max" (NaN if any operand is NaN).
        array: of the kind to be reduced, such as a vector's elements; only its library and its dtype matter.
    Raises:
        ValueError: an unknown op (the known are listed), or one that is not defined for the dtype.
    """

    __slots__ = ("_combine", "_divide", "op")

    def __init__(self, op: str, array: Any):
        if op not in ACCEPTED:
            raise ValueError(f"unknown op {op!r}; known: {', '.join(sorted(ACCEPTED))}")
        if _kind(array) not in ACCEPTED[op]:
            raise ValueError(f"no {op} of {wire_name(array.dtype)}; {REMEDY[op]}")
        maths = np if isinstance(array, np.ndarray) else sys.modules["torch"]
        self.op = op
        self._combine = maths.maximum if op == "max" else maths.add
        self._divide = maths.divide

    def combine(self, first: Any, second: Any, out: Any) -> None:
        """Reduce `first` and `second` element by element into `out`, which may be either of them."""
        self._combine(first, second, out=out)

    def combine_all(self, operands: Sequence[Any], out: Any) -> None:
        """Reduce two or more pieces in order; the first two are read before `out` is written."""
        first, second, *remaining = operands
        self._combine(first, second, out=out)
        for operand in remaining:
            self._combine(out, operand, out=out)

    def into(self, vector: Vector, span: Range, vector_of_peer: Vector, mine_first: bool = True) -> None:
        """Reduce the first elements of another vector into those of `span`."""
        low, high = span
        own_elements = vector.elements[low:high]
        peer_elements = vector_of_peer.elements[: high - low]
        first, second = (own_elements, peer_elements) if mine_first else (peer_elements, own_elements)
        self.combine(first, second, own_elements)

    def finish(self, elements: Any, size: int) -> None:
        """Turn the reduced elements of `size` ranks into the result: divides for a mean, else does nothing."""
        if self.op == "mean":
            self._divide(elements, size, out=elements)


def _kind(array: Any) -> str:
    """The letter that numpy has for this kind of dtype; unsigned integers of torch count as signed."""
    dtype = array.dtype
    if isinstance(array, np.ndarray):
        return dtype.kind
    floats = "c" if dtype.is_complex else "f" if dtype.is_floating_point else ""
    return floats or ("b" if dtype == sys.modules["torch"].bool else "i")
