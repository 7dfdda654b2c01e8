"""float32 and float64 cast to float16: 11 bits of mantissa, magnitudes from 6e-8 to 65504."""

from transports.codecs.base import Codec
from transports.codecs.floats import Cast, from_float16, to_float16
from transports.codecs.registry import refuse_argument


def build(argument: str) -> Codec:
    """The codec; it takes no argument."""
    refuse_argument("fp16", argument)
    return Cast(
        narrow="float16",
        to_narrow=to_float16,
        from_narrow=from_float16,
        infinity=0x7C00,
        max_magnitude=65504.0,
        remedy="bf16 or blockwise8",
    )
