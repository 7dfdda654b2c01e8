"""Arrays that every rank of a group has, of one size, in memory that all of them map.

The one rule: where in it a vector lies is said in words that are equal on all ranks if they mean the same place.

Source: OpenSHMEM 1.5, section 3.2 (symmetric data objects).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectives.arrays import Vector


@dataclass(frozen=True, slots=True)
class Found:
    """A vector that lies in such an array.

    Args:
        place: which array, and where in it.
        arrays: what lies there on each rank, in the group's order.
    """

    place: str
    arrays: tuple[Vector, ...]


class Allocated:
    """One such array.

    Args:
        number: how many the group had before.
        windows: the memory of each rank, in the group's order.
        rank: this one's place among them.
    Attributes:
        array: this rank's, of bytes.
    """

    def __init__(self, number: int, windows: Sequence[memoryview], rank: int):
        self._number = number
        self._arrays = [np.frombuffer(window, np.uint8) for window in windows]
        self.array = self._arrays[rank]
        self._start = _address(self.array)

    def find(self, vector: Vector) -> Found | None:
        """All ranks' vectors at this vector's place, if it lies in here."""
        low = _address(np.frombuffer(vector.data, np.uint8)) - self._start
        high = low + vector.nbytes
        if low < 0 or high > self.array.nbytes:
            return None
        return Found(f"array {self._number} at {low}", tuple(vector.over(array[low:high]) for array in self._arrays))


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]
