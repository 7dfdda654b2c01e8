"""float32 and float64 cast to bfloat16: 8 bits of mantissa, the range of float32."""

from transports.codecs.base import Codec
from transports.codecs.floats import Cast, from_bfloat16, to_bfloat16
from transports.codecs.registry import refuse_argument


def build(argument: str) -> Codec:
    """The codec; it takes no argument."""
    refuse_argument("bf16", argument)
    return Cast(
        narrow="bfloat16",
        to_narrow=to_bfloat16,
        from_narrow=from_bfloat16,
        infinity=0x7F80,
        max_magnitude=3.3895314e38,
        remedy="zstd",
    )
