"""The moves in which nothing is sent: each rank makes its array from its own alone; see `collective_moves`."""

import math
import sys
from typing import Any

import numpy as np

from pipelined.sharding.collective_moves import Groups, Move
from pipelined.sharding.shards import empty_like, places_in, put, take


class Slice(Move):
    name = "slice"

    async def run(self, groups: Groups, array: Any) -> Any:
        return take(array, places_in(self.source.pieces(groups.rank), self.target.pieces(groups.rank)))


class Mask(Move):
    name = "mask"

    async def run(self, groups: Groups, array: Any) -> Any:
        """For a mean or a maximum this is the array itself: all ranks hold the tensor."""
        axis = self.axes[0]
        if self.target.layout.partial[axis] != "sum" or not self.target.mesh.coordinate(groups.rank, axis):
            return array
        masked = empty_like(array, tuple(array.shape))
        masked[...] = 0
        return masked


class Pad(Move):
    name = "pad"

    async def run(self, groups: Groups, array: Any) -> Any:
        """A mean takes the piece times the ranks of the axis, a maximum the piece among the least of the dtype."""
        op = self.target.layout.partial[self.axes[0]]
        padded = empty_like(array, self.target.shape(groups.rank))
        padded[...] = _least_value(array) if op == "max" else 0
        values = array * self.group_size if op == "mean" else array
        put(padded, places_in(self.target.pieces(groups.rank), self.source.pieces(groups.rank)), values)
        return padded


class Scale(Move):
    """P → P: the shares of a mean become summands of a sum, or summands become shares."""

    name = "scale"

    async def run(self, groups: Groups, array: Any) -> Any:
        is_mean = self.target.layout.partial[self.axes[0]] == "mean"
        return array * self.group_size if is_mean else array / self.group_size


def _least_value(array: Any) -> float:
    """What a maximum with any other value gives way to: minus infinity, or the least integer of the dtype."""
    if hasattr(array, "new_empty"):
        torch = sys.modules["torch"]
        if array.dtype == torch.bool:
            return 0
        return -math.inf if array.is_floating_point() else torch.iinfo(array.dtype).min
    if array.dtype.kind == "b":
        return 0
    return -math.inf if array.dtype.kind == "f" else np.iinfo(array.dtype).min
