"""Publish: every rank of a node reads the arrays of all ranks where they lie in shared memory."""

import sys
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from collectives.algorithms.parts.double_buffer import DoubleBuffer
from collectives.algorithms.parts.shared_memory_algorithm import RAW_BYTES, open_buffer, opened_buffer
from collectives.group import Group
from collectives.group.call import Call
from collectives.group.sequence import CallContext
from collectives.group.signature import Signature
from transports import wire_name

ArrayShape = tuple[int, ...]


async def publish(group: Group, array: Any, shapes: Sequence[ArrayShape]) -> Sequence[Any] | None:
    """Copy an array into this rank's window, and wait until all ranks of the group have done so.

    Each rank then reads what it needs from the others' arrays, also through views that are not contiguous. So
    gathering, exchanging or reducing pieces costs one copy in, and one pass over what is read.

    Shapes: of each rank that of `shapes`, 0 elements allowed.

    Args:
        array: a numpy array or CPU torch tensor, contiguous or not; of one dtype on all ranks.
        shapes: of the array of each rank; equal on all ranks.
    Returns:
        The arrays of all ranks, of this array's kind, to be read until this rank's next collective on the group. None,
        on all ranks, where one is too long for a window; nothing was copied.
    Raises:
        ValueError: `shapes` has not one for each rank, or another one for this rank than the array's; nothing was done.
        Unsupported: the group's ranks share no memory.
        BrokenGroup: see `Group`.
        Mismatch: shapes or dtypes differ between ranks.
        TransportError: a rank or link failed.
    Cost: one barrier, and one copy of the array; nothing is sent.
    """
    _check(group, array, shapes)
    buffer = await open_buffer(group, RAW_BYTES)
    published = _published_arrays(group, buffer, array, shapes)
    if not published.fit:
        return None
    async with group.call(published.signature):
        if buffer.is_read_again:
            await buffer.advance()
        published.copy_in(group.rank, array)
        await buffer.advance()
    return published.views(1)


def start_publishing(group: Group, array: Any, shapes: Sequence[ArrayShape]) -> "Publication | None":
    """Start `publish` in another thread than the loop's, and wait there for a moment.

    Only one task or thread uses the group at a time.

    Returns: None if only the loop can do it; the caller then awaits `publish` there.
    Raises: ValueError, BrokenGroup, Mismatch: as `publish`.
    """
    _check(group, array, shapes)
    buffer = opened_buffer(group, RAW_BYTES)
    if buffer is None or not buffer.memory.is_threadsafe:
        return None
    published = _published_arrays(group, buffer, array, shapes)
    if not published.fit or buffer.is_read_again or (call := group.calls.start_in_thread(published.signature)) is None:
        return None
    publication = Publication(group, call, buffer, published)
    try:
        published.copy_in(group.rank, array)
        if not buffer.arrive():
            return publication
    except BaseException as error:
        group.calls.end_in_thread(error)
        raise
    group.calls.end_in_thread(None)
    publication.arrays = published.views(1)
    return publication


class Publication:
    """A publication that `start_publishing` has started.

    Attributes:
        arrays: as `publish` returns them, if all ranks have arrived; else None, and the loop awaits `finish`.
    """

    def __init__(self, group: Group, call: Call, buffer: DoubleBuffer, published: "_PublishedArrays"):
        self.arrays: Sequence[Any] | None = None
        self._calls = group.calls
        self._call = call
        self._buffer = buffer
        self._published = published

    async def finish(self) -> Sequence[Any]:
        """Wait for the others. Returns: as `publish`. Raises: as `publish`."""
        async with CallContext(self._calls, self._call):
            await self._buffer.wait_for_missing()
        return self._published.views(1)

    def abandon(self, error: BaseException) -> None:
        """End the call half done, instead of `finish`: the group is broken."""
        self._calls.end_in_thread(error)


def _check(group: Group, array: Any, shapes: Sequence[ArrayShape]) -> None:
    if len(shapes) != group.size:
        raise ValueError(f"one shape for each rank is needed (shapes: {len(shapes)}, ranks: {group.size})")
    if tuple(array.shape) != tuple(shapes[group.rank]):
        fact = f"array: {tuple(array.shape)}, shapes[{group.rank}]: {tuple(shapes[group.rank])}"
        raise ValueError(f"the array has another shape than the one given for this rank ({fact}); give its own")


def _published_arrays(
    group: Group, buffer: DoubleBuffer, array: Any, shapes: Sequence[ArrayShape]
) -> "_PublishedArrays":
    request = tuple(shapes), array.dtype, type(array)
    published: _PublishedArrays = group.workspace.cached_recent(
        request, partial(_PublishedArrays, buffer, array, shapes)
    )
    return published


class _PublishedArrays:
    """Arrays of these shapes in the windows of their ranks."""

    def __init__(self, buffer: DoubleBuffer, array: Any, shapes: Sequence[ArrayShape]):
        self._buffer = buffer
        self._shapes = shapes
        self._dtype = array.dtype
        self._in_numpy = isinstance(array, np.ndarray)
        lengths = tuple(map(prod, shapes))
        self._nbytes = [length * array.itemsize for length in lengths]
        self._views: list[Sequence[Any]] = [(), ()]
        self.fit = max(self._nbytes) <= buffer.half_bytes
        self.signature = Signature("publish", dtype=wire_name(array.dtype), lengths=lengths)

    def copy_in(self, rank: int, array: Any) -> None:
        """Copy an array into a rank's window; autograd would record a copy of a tensor that requires gradients."""
        self.views(0)[rank][...] = array if self._in_numpy else array.detach()

    def views(self, barriers_ago: int) -> Sequence[Any]:
        """The arrays of all ranks, as they are written before the next barrier, or were before the last one."""
        half = self._buffer.memory.epoch - barriers_ago & 1
        if not self._views[half]:
            self._views[half] = [self._view(rank, barriers_ago) for rank in range(len(self._shapes))]
        return self._views[half]

    def _view(self, rank: int, barriers_ago: int) -> Any:
        memory = self._buffer.elements(rank, 0, self._nbytes[rank], barriers_ago)
        if self._in_numpy:
            return memory.view(self._dtype).reshape(self._shapes[rank])
        return sys.modules["torch"].from_numpy(memory).view(self._dtype).view(self._shapes[rank])
