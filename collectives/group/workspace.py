"""The workspace of a group: scratch memory, and objects that its algorithms reuse between calls."""

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from collectives.arrays import Range, Vector, pieces

RECENT = 256
"""Requests for which a workspace keeps what was made: more than a training step makes different ones."""


class Workspace:
    """Memory and cached objects that one rank keeps for the calls of one group.

    Args:
        piece: bytes of an array that are sent, and reduced, at once.
        ahead: whether a piece is sent before the earlier ones have arrived.
    """

    def __init__(self, piece: int, ahead: bool):
        self.piece, self.ahead = piece, ahead
        self._buffers: dict[int, np.ndarray] = {}
        self._scratch: dict[int, Vector] = {}
        self._cache: dict[Hashable, Any] = {}
        self._recent_objects: dict[Hashable, Any] = {}

    def pieces(self, vector: Vector, span: Range) -> Iterator[Range]:
        """Cut a range of the vector's elements into pieces; an empty range has no pieces."""
        return pieces(*span, self._piece_elements(vector))

    def scratch(self, vector: Vector, length: int, lane: int = 0) -> Vector:
        """Memory for one piece (or `length` elements, if that is less) of the vector's dtype.

        Each lane has its own memory, which the next call with the same lane reuses.
        """
        length = min(length, self._piece_elements(vector))
        scratch = self._scratch.get(lane)
        if scratch is None or len(scratch) != length or not scratch.like(vector):
            scratch = self._scratch[lane] = vector.over(self._buffer(lane, length * vector.itemsize))
        return scratch

    def cached(self, name: Hashable, make: Callable[[], Any]) -> Any:
        """The object that an algorithm makes at its first call and reuses; it must not refer to the group.

        It is kept to the end, so `name` takes few values: no shapes.
        """
        cached = self._cache.get(name)
        if cached is None:
            cached = self._cache[name] = make()
        return cached

    def cached_recent(self, request: Hashable, make: Callable[[], Any]) -> Any:
        """The object made for this request, or a new one if `RECENT` others came since: shapes vary without end."""
        cached = self._recent_objects.pop(request, None)
        if cached is None:
            cached = make()
            if len(self._recent_objects) == RECENT:
                del self._recent_objects[next(iter(self._recent_objects))]
        self._recent_objects[request] = cached
        return cached

    def _buffer(self, lane: int, nbytes: int) -> np.ndarray:
        memory = self._buffers.get(lane)
        if memory is None or memory.nbytes < nbytes:
            memory = self._buffers[lane] = np.empty(nbytes, np.uint8)
        return memory[:nbytes]

    def _piece_elements(self, vector: Vector) -> int:
        return max(self.piece // vector.itemsize, 1)
