"""Floating-point blocks as flat float32 and back, and the casts to 16 bits.

bfloat16 is held as its 16 bits, because numpy has no such type. Rounding is to the nearest, ties to even, with the same
bits with and without torch. torch is used if the program has imported it: it casts float16 fifty times as fast as
numpy.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transports.codecs.base import Codec
from transports.errors import WireError
from transports.wire.arrays import ArrayType, Block

FLOATS = ("float16", "bfloat16", "float32", "float64")
WIDE = ("float32", "float64")
QUIET_NAN = 0x7FC0
"""The bfloat16 bits of every NaN."""


@dataclass(frozen=True, kw_only=True)
class Cast(Codec):
    """Casts float32 and float64 arrays to a 16-bit type, through float32; other arrays are sent as they are.

    Rounds to the nearest, ties to even. Refuses finite values that would become infinite; infinities and NaNs are kept.

    Args:
        narrow: the type's name.
        to_narrow, from_narrow: round flat float32 values to the type, and return it as float32.
        infinity: the bits of its infinity; those of a NaN are a larger number.
        max_magnitude: the largest of its finite values.
        remedy: what carries larger values.
    """

    lossless = False
    narrow: str
    to_narrow: Callable[[np.ndarray], np.ndarray]
    from_narrow: Callable[[np.ndarray], np.ndarray]
    infinity: int
    max_magnitude: float
    remedy: str

    def encode(self, block: Block) -> tuple[Block, ...] | None:
        if block.dtype not in WIDE:
            return None
        values = values_of(block)
        bits = self.to_narrow(as_float32(block)).view(np.uint16)
        magnitudes = bits & 0x7FFF
        if magnitudes.max() >= self.infinity and np.isfinite(values[magnitudes >= self.infinity]).any():
            largest = np.abs(values[np.isfinite(values)]).max()
            numbers = f"largest magnitude: {largest:g}, limit: {self.max_magnitude:g}"
            raise WireError(f"a value beyond {self.narrow} ({numbers}); use {self.remedy}")
        return (Block(self.narrow, block.shape, bits.data.cast("B")),)

    def check(self, parts: Sequence[Block], original: ArrayType) -> None:
        layouts = [(part.dtype, part.shape) for part in parts]
        if original.dtype not in WIDE or layouts != [(self.narrow, original.shape)]:
            raise WireError(f"no {original.dtype} {original.shape} cast to {self.narrow} (parts: {layouts})")

    def decode(self, parts: Sequence[Block], original: ArrayType) -> Block:
        return from_float32(self.from_narrow(values_of(parts[0])), original)


def values_of(block: Block) -> np.ndarray:
    """A block's values, flat and without a copy; bfloat16 values as uint16."""
    return np.frombuffer(block.data, _numpy_dtype(block.dtype))


def as_float32(block: Block) -> np.ndarray:
    """A block's values in a flat float32 array; a view if the block is float32."""
    values = values_of(block)
    if block.dtype == "bfloat16":
        return from_bfloat16(values)
    if block.dtype == "float16":
        return from_float16(values)
    with np.errstate(over="ignore"):  # a value beyond float32 becomes infinite
        return values.astype(np.float32, copy=False)


def from_float32(values: np.ndarray, original: ArrayType) -> Block:
    """A block of this layout from flat float32 values; a view of them if the layout is float32."""
    if original.dtype == "bfloat16":
        values = to_bfloat16(values)
    elif original.dtype == "float16":
        values = to_float16(values)
    return Block(original.dtype, original.shape, values.astype(_numpy_dtype(original.dtype), copy=False).data.cast("B"))


def to_float16(values: np.ndarray) -> np.ndarray:
    """Flat float32 rounded to float16; a value beyond float16 becomes infinite."""
    if (torch := sys.modules.get("torch")) is not None:
        return _tensor(torch, values).half().numpy()
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def from_float16(values: np.ndarray) -> np.ndarray:
    """Flat float16 as float32, exactly."""
    if (torch := sys.modules.get("torch")) is not None:
        return _tensor(torch, values).float().numpy()
    return values.astype(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Flat float32 rounded to bfloat16, as uint16 bits."""
    if (torch := sys.modules.get("torch")) is not None:
        return _tensor(torch, values).bfloat16().view(torch.uint16).numpy()
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1  # ties go to even
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    out = rounded.astype(np.uint16)
    out[np.isnan(values)] = QUIET_NAN
    return out


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Flat bfloat16, given as uint16 bits, as float32, exactly."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def _numpy_dtype(dtype: str) -> str:
    return "uint16" if dtype == "bfloat16" else dtype


def _tensor(torch: Any, values: np.ndarray) -> Any:
    """The same memory as a tensor; a copy if it is read-only, because torch accepts only writable memory."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())
