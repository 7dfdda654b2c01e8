"""The hand-over of a stage's coroutine: the device runs it up to its next move, the event loop carries the piece.

So all that is computed between two moves is one hand-over to the device's thread. A move through memory that ranks
share needs no loop: the thread begins it and waits for the others for a moment, and mostly goes on at once.
"""

import inspect
import types
from collections.abc import Coroutine, Generator
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch

from pipelined.actors.executor import Device
from pipelined.sharding.path import Path
from pipelined.sharding.shared_memory import StartedMove

T = TypeVar("T")


class Carrier(Protocol):
    """What carries pieces: see `pipelined.sharding.groups.MeshGroups`."""

    rank: int

    async def carry(self, path: Path, array: torch.Tensor) -> torch.Tensor: ...

    def start(self, path: Path, array: torch.Tensor) -> StartedMove | None: ...

    async def finish(self, move: StartedMove) -> torch.Tensor: ...


class Carry(NamedTuple):
    """What a coroutine yields: a piece to move. It goes on when the moved one has arrived."""

    path: Path
    array: torch.Tensor


async def run_stage(stage: Coroutine[Any, Any, T], device: Device, network: Carrier) -> T:
    """Run a coroutine that awaits `carried` alone.

    Raises: what the coroutine or a move raises; the coroutine is then closed.
    Cancelled: see `Executor.run`; a coroutine that still runs after that ends at its next move.
    Cost: one hand-over to the device, and one more for each path that its thread cannot finish at once.
    """
    arrived = list[torch.Tensor]()
    try:
        while True:
            result, *_ = await device.run("computations", partial(_advance, stage, network, arrived))
            if isinstance(result, Carry):
                arrived.append(await network.carry(*result))
            elif isinstance(result, StartedMove):
                arrived.append(await network.finish(result))
            else:
                return result
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


def _advance(stage: Coroutine[Any, Any, T], network: Carrier, arrived: list[torch.Tensor]) -> T | Carry | StartedMove:
    """Go on to the next move that waits for other ranks for long or needs the loop, or to the end."""
    while True:
        try:
            carry = cast(Carry, stage.send(arrived or None))
        except StopIteration as end:
            return cast(T, end.value)
        if (started := network.start(*carry)) is None:
            return carry
        if started.moved is None:
            return started
        arrived.append(started.moved)
        del carry, started  # else their arrays are kept until the next move
