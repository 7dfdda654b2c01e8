"""Floating-point blocks as flat float32 and back, and what both casts to 16 bits share.

bfloat16 is carried as its 16 bits: numpy has no such type. Rounding is to the nearest, ties to even, with the same bits
with and without torch. torch is used where the program has imported it already: it casts float16 fifty times as fast as
numpy.
"""

import sys
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from transports.codecs.base import Codec
from transports.errors import WireError
from transports.wire.arrays import Block, Layout

FLOATS = ("float16", "bfloat16", "float32", "float64")
WIDE = ("float32", "float64")
QUIET_NAN = 0x7FC0
"""Every NaN as bfloat16."""


class Cast(Codec):
    """float32 and float64 arrays as a type of 16 bits, by way of float32; others travel as they are.

    Attributes:
        narrow: the type's name.
    """

    lossless = False
    narrow: str

    def encode(self, block: Block) -> tuple[Block, ...] | None:
        return (self._narrowed(block),) if block.dtype in WIDE else None

    @abstractmethod
    def _narrowed(self, block: Block) -> Block: ...

    def check(self, parts: Sequence[Block], true: Layout) -> None:
        found = [(part.dtype, part.shape) for part in parts]
        if true.dtype not in WIDE or found != [(self.narrow, true.shape)]:
            raise WireError(f"no {true.dtype} {true.shape} cast to {self.narrow} (parts: {found})")


def values_of(block: Block) -> np.ndarray:
    """A block's values, flat and without a copy; those of bfloat16 as uint16."""
    return np.frombuffer(block.data, _numpy_dtype(block.dtype))


def as_float32(block: Block) -> np.ndarray:
    """A block's values in a flat float32 array, which views the block where it is float32 already."""
    values = values_of(block)
    if block.dtype == "bfloat16":
        return from_bfloat16(values)
    if block.dtype == "float16":
        return from_float16(values)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        return values.astype(np.float32, copy=False)


def from_float32(values: np.ndarray, true: Layout) -> Block:
    """A block of this layout out of flat float32 values; a view of them where it is float32."""
    if true.dtype == "bfloat16":
        values = to_bfloat16(values)
    elif true.dtype == "float16":
        values = to_float16(values)
    return Block(true.dtype, true.shape, memoryview(values.astype(_numpy_dtype(true.dtype), copy=False)).cast("B"))


def to_float16(values: np.ndarray) -> np.ndarray:
    """Flat float32 rounded to float16; what is too large becomes infinite."""
    if (torch := sys.modules.get("torch")) is not None:
        return _tensor(torch, values).half().numpy()
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


def from_float16(values: np.ndarray) -> np.ndarray:
    """Flat float16 as float32: exact."""
    if (torch := sys.modules.get("torch")) is not None:
        return _tensor(torch, values).float().numpy()
    return values.astype(np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Flat float32 rounded to bfloat16, as the 16 bits of each."""
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
    """bfloat16 as its bits, flat uint16, in float32: exact."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def _numpy_dtype(dtype: str) -> str:
    return "uint16" if dtype == "bfloat16" else dtype


def _tensor(torch: Any, values: np.ndarray) -> Any:
    """The same memory as a tensor; a copy where it may not be written to, for torch takes no such memory."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())
