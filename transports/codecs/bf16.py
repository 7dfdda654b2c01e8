"""float32 and float64 cast to bfloat16: 8 bits of mantissa, the range of float32."""

from collections.abc import Sequence

from transports.codecs.base import Codec
from transports.codecs.floats import Cast, as_float32, from_bfloat16, from_float32, to_bfloat16, values_of
from transports.codecs.registry import refuse_argument
from transports.wire.arrays import ArrayType, Block


def build(argument: str) -> Codec:
    """The codec; it takes no argument."""
    refuse_argument("bf16", argument)
    return BFloat16()


class BFloat16(Cast):
    """Rounds to the nearest, ties to even; infinities and NaNs are kept."""

    narrow = "bfloat16"

    def _narrowed(self, block: Block) -> Block:
        return Block("bfloat16", block.shape, to_bfloat16(as_float32(block)).data.cast("B"))

    def decode(self, parts: Sequence[Block], original: ArrayType) -> Block:
        return from_float32(from_bfloat16(values_of(parts[0])), original)
