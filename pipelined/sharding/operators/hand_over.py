"""The hand-over of a stage's coroutine: the device runs it up to its next move, the event loop carries the piece.

So all that is computed between two moves is one hand-over to the device's thread.
"""

import inspect
import types
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch

from pipelined.actors.executor import Device
from pipelined.sharding.path import Path

T = TypeVar("T")


class Carrier(Protocol):
    """What carries pieces: see `pipelined.sharding.groups.MeshGroups`."""

    rank: int

    async def carry(self, path: Path, array: torch.Tensor) -> torch.Tensor: ...


class Carry(NamedTuple):
    """What a coroutine yields: a piece to move. It goes on when the moved one has arrived."""

    path: Path
    array: torch.Tensor


async def run_stage(stage: Coroutine[Any, Any, T], device: Device, network: Carrier) -> T:
    """Run a coroutine that awaits `carried` alone.

    Raises: what the coroutine or a move raises; the coroutine is then closed.
    Cancelled: see `Executor.run`; a coroutine that still runs after that ends at its next move.
    Cost: one hand-over to the device, and one more for each path with moves.
    """
    arrived = list[torch.Tensor]()
    try:
        while True:
            result, *_ = await device.run("computations", partial(_advance, stage, arrived))
            if not isinstance(result, Carry):
                return result
            arrived.append(await network.carry(*result))
            del result  # else its array is kept until the next move
    finally:
        if inspect.getcoroutinestate(stage) != inspect.CORO_RUNNING:
            stage.close()


@types.coroutine
def carried(way: Path, array: torch.Tensor) -> Generator[Carry, list[torch.Tensor], torch.Tensor]:
    """The piece under the path's target, out of a list: an argument of `send` would be kept until the next move."""
    if not way.moves:
        return array
    arrived = yield Carry(way, array)
    return arrived.pop()


def _advance(stage: Coroutine[Any, Any, T], arrived: list[torch.Tensor]) -> T | Carry:
    """Go on to the next move, or to the end."""
    try:
        return cast(Carry, stage.send(arrived or None))
    except StopIteration as end:
        return cast(T, end.value)
