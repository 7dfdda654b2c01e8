"""Vector: the flat view of a contiguous array that collectives use; typed elements to compute with, bytes to send.

Also how its elements are cut: into one segment per rank, and a range into consecutive pieces. Both ends of a link
compute the same cut from numbers that both know, so no size is ever sent.

Nothing is copied: an array that is not contiguous or not in CPU memory is refused. numpy computes for every dtype that
it has. torch, where it is loaded, computes for the half-width floats, which numpy lacks or computes slowly (0.5 GB/s).
This module never imports torch: a caller that passes a tensor has imported it.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from transports import WireError, wire_name
from transports.wire.arrays import array_bytes

_NAMES = {np.dtype(name): name for name in ("float32", "float64", "float16", "int64", "int32")}  # `name` takes a µs
_PLAIN = (np.ndarray, np.memmap)

Range = tuple[int, int]
"""Elements [low, high) of a vector."""


class Vector:
    """A flat view of an array's memory.

    Args:
        elements: the same memory as a one-dimensional numpy array or torch tensor, for computing.
        data: the same memory as a memoryview of format "B".
        dtype: its name, the same in numpy and torch.
        itemsize: bytes per element.
    Attributes:
        nbytes: bytes of all elements.
    """

    __slots__ = ("_length", "data", "dtype", "elements", "itemsize", "nbytes")

    def __init__(self, elements: Any, data: memoryview, dtype: str, itemsize: int):
        self.elements = elements
        self.data = data
        self.dtype = dtype
        self.itemsize = itemsize
        self.nbytes = data.nbytes
        self._length = self.nbytes // itemsize

    @classmethod
    def of(cls, array: Any) -> "Vector":
        """View a numpy array or a torch tensor.

        Raises:
            TypeError: it is neither, or a subclass. ValueError: it is not contiguous, read-only, on another device, of
                another byte order, or of a dtype without a wire form.
        """
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(array, torch.Tensor):
            return cls._of_tensor(torch, array.detach())
        if type(array) not in _PLAIN:
            raise TypeError(f"no plain array (type: {type(array).__name__}); pass a numpy array or a CPU torch tensor")
        flags, dtype = array.flags, array.dtype
        if not flags.c_contiguous:
            raise ValueError(f"the array is not contiguous (shape: {array.shape}, strides: {array.strides}); copy it")
        if not flags.writeable:
            raise ValueError(f"the array is read-only (shape: {array.shape}); a collective writes in place: copy it")
        name = _NAMES.get(dtype) or _name(dtype)
        if not dtype.isnative:
            raise ValueError(f"the array has another machine's byte order (dtype: {dtype.str}); use .astype({name!r})")
        flat = array if array.ndim == 1 else array.ravel()  # the same memory, as it is contiguous
        data = array_bytes(flat)
        if torch is not None and name == "float16":
            flat = torch.from_numpy(flat)
        return cls(flat, data, name, dtype.itemsize)

    @classmethod
    def _of_tensor(cls, torch: Any, tensor: Any) -> "Vector":
        if tensor.device.type != "cpu":
            raise ValueError(f"the tensor is not in the CPU's memory (device: {tensor.device}); move it with .cpu()")
        if not tensor.is_contiguous():
            raise ValueError(f"the tensor is not contiguous (shape: {tuple(tensor.shape)}); call .contiguous() first")
        if tensor.is_conj() or tensor.is_neg():
            raise ValueError("the tensor is a lazy conjugate or negative; call .resolve_conj().resolve_neg() first")
        name = _name(tensor.dtype)
        if tensor.dtype not in (torch.bfloat16, torch.float16):
            return cls.of(tensor.numpy())
        flat = tensor.reshape(-1)
        data = flat.view(torch.uint8).numpy().data
        return cls(flat, data, name, flat.element_size())

    def __len__(self) -> int:
        return self._length

    def bytes(self, low: int, high: int) -> memoryview:
        """The memory of elements [low, high)."""
        return self.data[low * self.itemsize : high * self.itemsize]

    def slice(self, low: int, high: int) -> "Vector":
        """Elements [low, high) as a vector over the same memory."""
        return Vector(self.elements[low:high], self.bytes(low, high), self.dtype, self.itemsize)

    def like(self, vector: "Vector") -> bool:
        """Whether both have one dtype, and both compute in numpy or both in torch."""
        return self.dtype == vector.dtype and type(self.elements) is type(vector.elements)

    def over(self, memory: np.ndarray) -> "Vector":
        """View other memory (flat uint8, a whole number of elements) with this vector's dtype."""
        if isinstance(self.elements, np.ndarray):
            elements = memory.view(self.elements.dtype)
        else:
            elements = sys.modules["torch"].from_numpy(memory).view(self.elements.dtype)
        return Vector(elements, memory.data, self.dtype, self.itemsize)


def segment(length: int, parts: int, index: int) -> Range:
    """The range [low, high) of part `index`, if `length` elements are cut evenly; sizes differ by at most one."""
    return index * length // parts, (index + 1) * length // parts


def segments(length: int, parts: int, lengths: Sequence[int] | None = None) -> list[Range]:
    """The consecutive ranges of all parts, some perhaps empty.

    Args:
        lengths: the elements of each part; None: those of `segment`.
    Raises:
        ValueError: not one length for each part, one that is negative or no integer, or lengths of another sum than
            `length`.
    """
    if lengths is None:
        return [segment(length, parts, index) for index in range(parts)]
    integers = all(hasattr(part, "__index__") for part in lengths)
    if not integers or len(lengths) != parts or min(lengths) < 0 or sum(lengths) != length:
        fact = f"lengths: {list(lengths)}, elements: {length}, ranks: {parts}"
        raise ValueError(f"the segments do not make up the array ({fact}); give each rank's elements, integers from 0")
    return list(pairwise(accumulate(lengths, initial=0)))


def pieces(low: int, high: int, max_length: int) -> Iterator[Range]:
    """Cut [low, high) into ranges of at most `max_length` elements; an empty range has no pieces."""
    return ((start, min(start + max_length, high)) for start in range(low, high, max_length))


def _name(dtype: Any) -> str:
    try:
        return wire_name(dtype)
    except WireError as error:
        raise ValueError(f"a collective cannot send this array: {error}") from error
