"""Arrays on the wire: a block is raw bytes with a dtype and a shape, a layout is a block to come.

`Block.of` views an array and copies only what is not contiguous. `landing` gives the blocks that a message is received
into, over the receiver's own arrays or in fresh memory; an array that does not fit is refused before a byte moves, so
that the message stays available.

Knows numpy and, only when the caller has already imported it, torch; it imports torch only for `Block.torch`. bfloat16
has no numpy dtype, so dtypes travel as the names that both libraries share.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from transports.errors import WireError

SIZES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip

_NAMES = {np.dtype(name): name for name in SIZES if name != "bfloat16"}  # for `dtype.name` takes microseconds
_BYTE = np.dtype(np.uint8)


class Layout(NamedTuple):
    """One array to come: a dtype out of `SIZES` and a shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * SIZES[self.dtype]


@dataclass(slots=True)  # not frozen, which makes each cost a quarter of a microsecond more
class Block:
    """One array on the wire; do not assign to its fields.

    Args:
        dtype: a name out of `SIZES`.
        shape: any rank, zeros allowed.
        data: the bytes, C order, `prod(shape) * SIZES[dtype]` of them, as a flat memoryview of format "B".
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @classmethod
    def of(cls, array: Any) -> "Block":
        """View a numpy array, a CPU torch tensor, bytes or a block as a block; copies only what is not contiguous.

        Raises:
            WireError: the dtype has no wire form, as objects, strings and dates have none.
        """
        if isinstance(array, Block):
            return array
        if not isinstance(array, np.ndarray):
            if isinstance(array, (bytes, bytearray, memoryview)):
                return cls.bare(array)
            torch = sys.modules.get("torch")
            if torch is not None and isinstance(array, torch.Tensor):
                name, whole = wire_name(array.dtype), array.detach().resolve_conj().resolve_neg().contiguous()
                flat = whole.reshape(-1).view(torch.uint8).numpy()
                return cls(name, tuple(array.shape), memoryview(flat))
            array = np.asarray(array)
        name = _NAMES.get(array.dtype) or wire_name(array.dtype)
        solid = array if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(array.shape)
        if not solid.dtype.isnative:
            solid = solid.astype(solid.dtype.newbyteorder("="))
        return cls(name, solid.shape, _flat(solid))

    @classmethod
    def bare(cls, buffer: Any) -> "Block":
        """View the bytes of a buffer; raises as `flat_bytes`."""
        data = flat_bytes(buffer)
        return cls("uint8", (data.nbytes,), data)

    @classmethod
    def empty(cls, dtype: str, shape: tuple[int, ...]) -> "Block":
        """A block of fresh, uninitialised memory."""
        return cls(dtype, shape, memoryview(np.empty(prod(shape) * SIZES[dtype], np.uint8)))

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def numpy(self) -> np.ndarray:
        """The same memory as a numpy array (not for bfloat16, which numpy does not have)."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)

    def torch(self) -> Any:
        """The same memory as a torch tensor; imports torch."""
        import torch

        if not self.nbytes:
            return torch.empty(self.shape, dtype=getattr(torch, self.dtype))
        return torch.frombuffer(self.data, dtype=getattr(torch, self.dtype)).reshape(self.shape)


def wire_name(dtype: Any) -> str:
    """The name of a numpy or torch dtype on the wire.

    Raises:
        WireError: it has none. Its bytes mean nothing to another process (an object's are a pointer), or not the same
            on every machine.
    """
    name = dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")
    if name not in SIZES:
        raise WireError(f"dtype {dtype} has no wire form; convert the array to one of {', '.join(SIZES)}")
    return name


def flat_bytes(buffer: Any) -> memoryview:
    """The bytes of bytes, a bytearray or a memoryview, as a flat memoryview of format "B".

    Raises:
        WireError: the items are no plain numbers, or they have gaps.
    """
    view = memoryview(buffer)
    if view.format[-1] in "OP":  # which Python would cast: to write over an object's pointer ends the process
        raise WireError(f"the buffer has no wire form (format: {view.format}, pointers); pass memory of plain numbers")
    try:
        return view.cast("B")
    except (TypeError, ValueError) as error:
        raise WireError(f"the buffer has no wire form ({error}); pass contiguous memory of plain numbers") from error


def _flat(solid: np.ndarray) -> memoryview:
    """The bytes of a contiguous array; numpy's way is slower, and takes empty arrays and all dtypes."""
    try:
        return memoryview(solid).cast("B")
    except (TypeError, ValueError):
        return memoryview(solid.reshape(-1).view(_BYTE))


def destinations(into: Sequence[Any] | None) -> tuple[Block, ...] | None:
    """View the arrays that a receiver lends, before anything is awaited; None stays None.

    Raises:
        ValueError: one of them has gaps, another machine's byte order or a dtype without a wire form, or is read-only.
    """
    return None if into is None else tuple([_destination(at, array) for at, array in enumerate(into)])


def landing(layouts: Sequence[Layout], into: Sequence[Block] | None = None) -> tuple[Block, ...]:
    """Blocks to be filled: over the memory of those in `into`, or fresh memory where it is None.

    Raises:
        ValueError: `into` has another number of blocks, or one of them another size.
    """
    if into is None:
        return tuple([Block.empty(layout.dtype, layout.shape) for layout in layouts])
    if len(into) != len(layouts):
        raise ValueError(f"`into` does not fit the message (arrays: {len(into)}, blocks: {len(layouts)})")
    return tuple([_fitted(at, layout, into[at].data) for at, layout in enumerate(layouts)])


def fill(blocks: Sequence[Block], source: Sequence[Block]) -> None:
    """Copy the bytes of `source` into `blocks` of the same sizes."""
    for block, other in zip(blocks, source, strict=True):
        block.data[:] = other.data


def copied(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """The same blocks in memory of their own."""
    fresh = landing([Layout(block.dtype, block.shape) for block in blocks])
    fill(fresh, blocks)
    return fresh


def _destination(at: int, array: Any) -> Block:
    try:
        block = Block.of(array)
    except WireError as error:
        raise ValueError(f"into[{at}] cannot be filled: {error}") from error
    if not _is_solid(array):
        raise ValueError(f"into[{at}] is not contiguous in this machine's byte order, so it cannot be filled in place")
    if block.data.readonly:
        raise ValueError(f"into[{at}] is read-only, so it cannot be filled in place")
    return block


def _fitted(at: int, layout: Layout, data: memoryview) -> Block:
    if data.nbytes != layout.nbytes:
        raise ValueError(f"into[{at}] does not fit the block (into: {data.nbytes} bytes, block: {layout.nbytes})")
    return Block(layout.dtype, layout.shape, data)


def _is_solid(array: Any) -> bool:
    """Whether `Block.of` views the array's own memory rather than a copy."""
    if isinstance(array, np.ndarray):
        return array.flags.c_contiguous and array.dtype.isnative
    if isinstance(array, (Block, bytes, bytearray, memoryview)):
        return True
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return False
    return array.is_contiguous() and not array.is_conj() and not array.is_neg()
