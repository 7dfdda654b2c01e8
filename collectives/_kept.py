"""What an array held before a collective wrote to it, so that one that fails gives it back.

    untouched   [ |        |          |    ]    nobody has written there yet
    keep        copies what is untouched of a range
    restore     copies back what was kept

The one rule: whoever writes to a vector's elements says so before (`Vector.keep`). So a range is copied just before its
reduction reads it, on one way through the core's cache; copying the whole array at first takes it twice through memory.
"""

from collections.abc import Iterator

from collectives._pieces import Range
from collectives._vector import Vector


class Kept:
    """The first bytes of a vector's elements.

    Args:
        vector: whose they are.
        memory: room for all of them.
    Cost: at most the array once, in parts; a list of the ranges between them.
    """

    def __init__(self, vector: Vector, memory: memoryview):
        self._vector, self._memory = vector, memory
        self._untouched: list[Range] = [(0, len(vector))]

    def keep(self, low: int, high: int) -> None:
        """Elements [low, high) are about to be written to."""
        left: list[Range] = []
        for start, stop in self._untouched:
            first, last = max(start, low), min(stop, high)
            if first >= last:
                left.append((start, stop))
                continue
            self._place(first, last)[:] = self._vector.bytes(first, last)
            left += [rest for rest in ((start, first), (last, stop)) if rest[0] < rest[1]]
        self._untouched = left

    def restore(self) -> None:
        """Give the vector back what it held."""
        for low, high in self._touched():
            self._vector.bytes(low, high)[:] = self._place(low, high)

    def _touched(self) -> Iterator[Range]:
        at = 0
        for start, stop in self._untouched:
            yield at, start
            at = stop
        yield at, len(self._vector)

    def _place(self, low: int, high: int) -> memoryview:
        return self._memory[low * self._vector.itemsize : high * self._vector.itemsize]
