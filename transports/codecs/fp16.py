"""float32 and float64 cast to float16: 11 bits of mantissa, magnitudes from 6e-8 to 65504."""

from collections.abc import Sequence

import numpy as np

from transports.codecs.base import Codec
from transports.codecs.floats import Cast, as_float32, from_float16, from_float32, to_float16, values_of
from transports.codecs.registry import refuse_argument
from transports.errors import WireError
from transports.wire.arrays import ArrayType, Block

MAX_MAGNITUDE = 65504.0
INFINITE = 0x7C00
"""The bits of an infinite float16; those of a NaN are a larger number."""


def build(argument: str) -> Codec:
    """The codec; it takes no argument."""
    refuse_argument("fp16", argument)
    return Float16()


class Float16(Cast):
    """Refuses values beyond float16; infinities and NaNs are kept."""

    narrow = "float16"

    def _narrowed(self, block: Block) -> Block:
        values = as_float32(block)
        narrow = to_float16(values)
        grown = (narrow.view(np.uint16) & 0x7FFF) >= INFINITE
        if grown.any() and np.isfinite(values[grown]).any():
            largest = np.abs(values[np.isfinite(values)]).max()
            fact = f"a value beyond float16 (largest magnitude: {largest:g}, limit: {MAX_MAGNITUDE:g})"
            raise WireError(f"{fact}; use bf16 or blockwise8")
        return Block("float16", block.shape, narrow.data.cast("B"))

    def decode(self, parts: Sequence[Block], original: ArrayType) -> Block:
        return from_float32(from_float16(values_of(parts[0])), original)
