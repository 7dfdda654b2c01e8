"""Arrays on the wire: a block is raw bytes with a dtype and a shape; a layout is the dtype and shape alone.

`Block.of` views an array and copies it only if it is not contiguous. `blocks_for` returns the blocks that a message
is received into, over the receiver's own arrays or in new memory; it refuses an array that does not fit before any byte
is copied, so that the message stays available.

Works with numpy and, if the caller has imported it, torch; only `Block.torch` imports torch. numpy has no bfloat16, so
dtypes are sent as the names that both libraries share.
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

_NAMES = {np.dtype(name): name for name in SIZES if name != "bfloat16"}  # faster: `dtype.name` takes microseconds
_BYTE = np.dtype(np.uint8)


class ArrayType(NamedTuple):
    """The type of one array: a dtype from `SIZES` and a shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * SIZES[self.dtype]


@dataclass(slots=True)  # not frozen: that adds 0.25 µs to each construction
class Block:
    """One array on the wire; do not assign to its fields.

    Args:
        dtype: a name from `SIZES`.
        shape: any rank, zeros allowed.
        data: `prod(shape) * SIZES[dtype]` bytes in C order, as a flat memoryview of format "B".
    """

    dtype: str
    shape: tuple[int, ...]
    data: memoryview

    @classmethod
    def of(cls, array: Any) -> "Block":
        """View a numpy array, a CPU torch tensor, bytes or a block as a block; copies it only if not contiguous.

        Raises:
            WireError: the dtype has no wire form (objects, strings, dates).
        """
        if isinstance(array, Block):
            return array
        if not isinstance(array, np.ndarray):
            if isinstance(array, (bytes, bytearray, memoryview)):
                return cls.bare(array)
            torch = sys.modules.get("torch")
            if torch is not None and isinstance(array, torch.Tensor):
                name = wire_name(array.dtype)
                tensor = array.detach().resolve_conj().resolve_neg().contiguous()
                flat = tensor.reshape(-1).view(torch.uint8).numpy()
                return cls(name, tuple(array.shape), flat.data)
            array = np.asarray(array)
        name = _NAMES.get(array.dtype) or wire_name(array.dtype)
        contiguous = array if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(array.shape)
        if not contiguous.dtype.isnative:
            contiguous = contiguous.astype(contiguous.dtype.newbyteorder("="))
        return cls(name, contiguous.shape, array_bytes(contiguous))

    @classmethod
    def bare(cls, buffer: Any) -> "Block":
        """View the bytes of a buffer as a block of uint8. Raises as `flat_bytes`."""
        data = flat_bytes(buffer)
        return cls("uint8", (data.nbytes,), data)

    @classmethod
    def empty(cls, dtype: str, shape: tuple[int, ...]) -> "Block":
        """A block in new, uninitialised memory."""
        return cls(dtype, shape, np.empty(prod(shape) * SIZES[dtype], np.uint8).data)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def numpy(self) -> np.ndarray:
        """The same memory as a numpy array; not for bfloat16, which numpy lacks."""
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
        WireError: the dtype has no wire form: another process or machine could not interpret its bytes (an object's
            bytes are a pointer).
    """
    name = dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")
    if name not in SIZES:
        raise WireError(f"dtype {dtype} has no wire form; convert the array to one of {', '.join(SIZES)}")
    return name


def flat_bytes(buffer: Any) -> memoryview:
    """View bytes, a bytearray or a memoryview as a flat memoryview of format "B".

    Raises:
        WireError: the items are not plain numbers, or there are gaps between them.
    """
    view = memoryview(buffer)
    if view.format[-1] in "OP":  # Python would cast them, but overwriting an object's pointer crashes the process
        raise WireError(f"the buffer has no wire form (format: {view.format}, pointers); pass memory of plain numbers")
    if not view.nbytes:  # Python casts no view with a zero in a shape of several dimensions
        return memoryview(b"" if view.readonly else bytearray())
    try:
        return view.cast("B")
    except (TypeError, ValueError) as error:
        raise WireError(f"the buffer has no wire form ({error}); pass contiguous memory of plain numbers") from error


def writable_bytes(buffer: Any) -> memoryview:
    """As `flat_bytes`, for memory that is to be filled; to be called before the first await.

    Raises:
        WireError: as `flat_bytes`. ValueError: the memory is read-only.
    """
    view = flat_bytes(buffer)
    if view.readonly:
        raise ValueError(f"the buffer is read-only and cannot be filled (bytes: {view.nbytes}); pass writable memory")
    return view


def array_bytes(contiguous: np.ndarray) -> memoryview:
    """View the bytes of a contiguous array; numpy's view is slower, but works for empty arrays and all dtypes."""
    try:
        return contiguous.data.cast("B")
    except (TypeError, ValueError):
        return contiguous.reshape(-1).view(_BYTE).data


def as_targets(into: Sequence[Any] | None) -> tuple[Block, ...] | None:
    """View the receiver's arrays as blocks, to be checked before the first await; None stays None.

    Raises:
        ValueError: an array has gaps, another byte order or a dtype without a wire form, or is read-only.
    """
    return None if into is None else tuple([_as_target(index, array) for index, array in enumerate(into)])


def blocks_for(layouts: Sequence[ArrayType], into: Sequence[Block] | None = None) -> tuple[Block, ...]:
    """Blocks to be filled: over the memory of the blocks in `into`, or in new memory if it is None.

    Raises:
        ValueError: `into` has another number of blocks, or a block of another size.
    """
    if into is None:
        return tuple([Block.empty(layout.dtype, layout.shape) for layout in layouts])
    if len(into) != len(layouts):
        raise ValueError(f"`into` does not fit the message (arrays: {len(into)}, blocks: {len(layouts)})")
    return tuple([_fitted(index, layout, into[index].data) for index, layout in enumerate(layouts)])


def fill(blocks: Sequence[Block], source: Sequence[Block]) -> None:
    """Copy the bytes of `source` into `blocks`, which have the same sizes."""
    for block, source_block in zip(blocks, source, strict=True):
        block.data[:] = source_block.data


def copied(blocks: Sequence[Block]) -> tuple[Block, ...]:
    """Copies of the blocks in new memory."""
    fresh = blocks_for([ArrayType(block.dtype, block.shape) for block in blocks])
    fill(fresh, blocks)
    return fresh


def _as_target(index: int, array: Any) -> Block:
    try:
        block = Block.of(array)
    except WireError as error:
        raise ValueError(f"into[{index}] cannot be filled: {error}") from error
    if not _is_contiguous(array):
        raise ValueError(
            f"into[{index}] is not contiguous in this machine's byte order, so it cannot be filled in place"
        )
    if block.data.readonly:
        raise ValueError(f"into[{index}] is read-only, so it cannot be filled in place")
    return block


def _fitted(index: int, layout: ArrayType, data: memoryview) -> Block:
    if data.nbytes != layout.nbytes:
        raise ValueError(f"into[{index}] does not fit the block (into: {data.nbytes} bytes, block: {layout.nbytes})")
    return Block(layout.dtype, layout.shape, data)


def _is_contiguous(array: Any) -> bool:
    """Whether `Block.of` views the array's own memory and makes no copy."""
    if isinstance(array, np.ndarray):
        return array.flags.c_contiguous and array.dtype.isnative
    if isinstance(array, (Block, bytes, bytearray, memoryview)):
        return True
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(array, torch.Tensor):
        return False
    return array.is_contiguous() and not array.is_conj() and not array.is_neg()
