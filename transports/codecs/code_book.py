"""The 256 values of the eight-bit codes, and the lookup tables for arrays. The values are part of the protocol.

For i = 0 to 6: plus and minus 10^(i-6) times the midpoints of linspace(0.1, 1, 2^i + 1); also 0 and 1.0. In ascending
order, so that code 127 is zero.

**To codes.** The nearest code of a float32 between -1 and 1 is a step function of its magnitude, with steps halfway
between neighbours. Its upper 16 bits (sign, exponent, 7 bits of mantissa) name a cell that holds one step at most, and
its lower 16 bits decide on which side of the step the value is. A cell's entry is laid out for one addition:

    byte 3       byte 2                                bytes 1 and 0
    sign: 00/ff  codes below the cell (with the sign)  65536 - the lower bits of the first value beyond the step, or 0

Added to the lower bits of a value, the entry carries into byte 2 exactly beyond the step, and byte 2 XOR byte 3 is the
code: the sign turns n codes above zero into n codes below zero.

**From codes.** Two neighbouring codes are looked up at once, in a table of 65,536 pairs of float32.
"""

import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

ZERO = 127
"""The code of 0."""


@cache
def code_book() -> np.ndarray:
    """The values in ascending order: float32 (256,), from -0.9930 to 1.0."""
    values = [0.0, 1.0]
    for power in range(7):
        edges = np.linspace(0.1, 1.0, 2**power + 1)
        middles = 10.0 ** (power - 6) * (edges[:-1] + edges[1:]) / 2
        values += [*middles, *-middles]
    return _constant(np.sort(np.array(values)).astype(np.float32))


@cache
def cell_table() -> np.ndarray:
    """The entry to add to a value's lower 16 bits, indexed by its upper 16 bits: uint32 (65536,)."""
    upwards = code_book()[ZERO:]
    both_signs = [_half(upwards, 0, ZERO), _half(-code_book()[ZERO::-1], 0xFF, 255 - ZERO)]
    return _constant(np.concatenate(both_signs))


@cache
def pair_table() -> np.ndarray:
    """Two float32 values as 64 bits, indexed by two uint8 codes as 16 bits: uint64 (65536,)."""
    codes = np.arange(1 << 16, dtype=np.uint16).view(np.uint8)
    return _constant(code_book()[codes].view(np.uint64))


class PairLookUp:
    """Decodes pairs of codes; by torch if it is imported, because its indices are half as wide as numpy's.

    Args:
        max_pairs: maximum pairs of one call; memory for their indices is allocated once.
    """

    def __init__(self, max_pairs: int):
        self._torch = sys.modules.get("torch")
        self._indices: NDArray[np.integer[Any]] = np.empty(max_pairs, np.intp if self._torch is None else np.int32)

    def __call__(self, codes: np.ndarray, values: np.ndarray) -> None:
        """Fill in the values, float32 (2 n,), of n pairs of codes, uint8 (2 n,)."""
        indices = self._indices[: codes.size // 2]
        out = values.view(np.uint64)
        indices[:] = codes.view(np.uint16)
        if self._torch is None:
            np.take(pair_table(), indices, out=out, mode="wrap")  # the fastest mode; all indices are in range
        else:
            tensor = self._torch.from_numpy
            self._torch.index_select(_pair_tensor(), 0, tensor(indices), out=tensor(out.view(np.int64)))


@cache
def _pair_tensor() -> Any:
    return sys.modules["torch"].from_numpy(pair_table().view(np.int64).copy())  # torch accepts only writable memory


def _half(magnitudes: np.ndarray, sign: int, first_code: int) -> np.ndarray:
    """The entries of the 32,768 cells of one sign, for magnitudes that begin with 0."""
    steps = _first_beyond((magnitudes[:-1].astype(float) + magnitudes[1:]) / 2)
    cell_starts = np.arange(1 << 15, dtype=np.uint32) << 16
    entries = (np.searchsorted(steps, cell_starts, "right") + first_code).astype(np.uint32) << 16
    inside = steps & 0xFFFF > 0
    entries[steps[inside] >> 16] += 0x10000 - (steps[inside] & 0xFFFF)
    return entries | np.uint32(sign << 24)


def _first_beyond(values: np.ndarray) -> np.ndarray:
    """The bits of the smallest float32 above each of these float64 values."""
    nearest = values.astype(np.float32)
    beyond = np.where(nearest > values, nearest, np.nextafter(nearest, np.float32(np.inf)))
    return beyond.view(np.uint32)


def _constant(table: np.ndarray) -> np.ndarray:
    table.flags.writeable = False
    return table
