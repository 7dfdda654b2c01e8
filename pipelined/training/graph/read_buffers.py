"""The buffers that first forwards read, for the forwards that repeat them in the backward.

A forward may read a buffer that a forward before it wrote. When it is run again, the buffer has another value. So each
first forward keeps copies of what it read: of the buffers that some forward has written by then, and of no others.
"""

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn

T = TypeVar("T")
K = TypeVar("K")
Values = dict[str, torch.Tensor | None]


class BufferRead(NamedTuple):
    """A buffer before a forward: the tensor, its count of writes, and a copy."""

    tensor: torch.Tensor | None
    writes: int
    value: torch.Tensor | None

    @classmethod
    def of(cls, tensor: torch.Tensor | None) -> "BufferRead":
        return cls(tensor, 0 if tensor is None else tensor._version, _copy(tensor))

    def is_written(self, after: torch.Tensor | None) -> bool:
        """Whether the forward has changed it, or put another tensor in its place."""
        return after is not self.tensor or (after is not None and after._version != self.writes)


class ReadBuffers(Generic[K]):
    """What the forwards of one module read, by the key of each.

    Args:
        kept: where the copies are kept, by key and by the name of the buffer.
    """

    def __init__(self, kept: MutableMapping[K, Values]):
        self._kept = kept
        self._written = set[str]()  # by any forward so far

    def run_noting(self, key: K, module: nn.Module, forward: Callable[[], T]) -> T:
        """Run a first forward, and keep what it read.

        Cost: a copy of all buffers for the time of the forward; afterwards of those alone that forwards write.
        """
        before = {name: BufferRead.of(owner._buffers[leaf]) for name, (owner, leaf) in _places(module).items()}
        result = forward()
        places = _places(module)
        after = {name: owner._buffers[leaf] for name, (owner, leaf) in places.items()}
        written = {name for name, read in before.items() if name in after and read.is_written(after[name])}
        for name in written - self._written:  # the forwards before this one read the same value
            for values in self._kept.values():
                values[name] = before[name].value
        self._written |= written
        self._kept[key] = {name: before[name].value for name in self._written & before.keys()}
        return result

    @contextmanager
    def reading(self, key: K, module: nn.Module) -> Iterator[None]:
        """Inside the `with` block the module has copies of what a first forward read; they are forgotten at its end."""
        values = self._kept.pop(key)
        places = _places(module)
        originals = {name: owner._buffers[leaf] for name, (owner, leaf) in places.items()}
        try:
            _put(places, {name: _copy(values.get(name, original)) for name, original in originals.items()})
            yield
        finally:
            _put(places, originals)


def _copy(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _places(module: nn.Module) -> dict[str, tuple[Any, str]]:
    """The owner of each buffer, and its name there, by its name in the module."""
    return {
        f"{path}.{leaf}".lstrip("."): (owner, leaf) for path, owner in module.named_modules() for leaf in owner._buffers
    }


def _put(places: dict[str, tuple[Any, str]], values: Values) -> None:
    for name, value in values.items():
        owner, leaf = places[name]
        setattr(owner, leaf, value)
