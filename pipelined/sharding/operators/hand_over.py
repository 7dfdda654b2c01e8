"""The hand-over of a stage's coroutine: the device runs it up to its next move, the event loop carries the piece.

So all that is computed between two moves is one hand-over to the device's thread. A move through memory that ranks
share needs no loop: the thread begins it and waits for the others for a moment, and mostly goes on at once.
"""

import asyncio
import inspect
import types
from collections.abc import Coroutine, Generator
from contextlib import suppress
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast

import torch

from pipelined.actors.device.executor import ComputeQueue
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


async def run_stage(stage: Coroutine[Any, Any, T], queue: ComputeQueue, network: Carrier) -> T:
    """Run a coroutine that awaits `carried` alone.

    Raises: what the coroutine or a move raises; the coroutine is then closed.
    Cancelled: see `Executor.run`; a coroutine that still runs ends at its next move. A move that was begun by then
        breaks its group.
    Cost: one hand-over to the device, and one more for each path that its thread cannot finish at once.
    """
    hand_over = _HandOver(stage, network)
    try:
        while True:
            result, *_ = await queue.run("computations", hand_over.advance)
            hand_over.started_move = None
            if isinstance(result, Carry):
                hand_over.arrived.append(await network.carry(*result))
            elif isinstance(result, StartedMove):
                hand_over.arrived.append(await network.finish(result))
            else:
                return result
            del result  # else its array is kept until the next move
    finally:
        hand_over.close()


@types.coroutine
def carry_piece(path: Path, array: torch.Tensor) -> Generator[Carry, list[torch.Tensor], torch.Tensor]:
    """The piece under the path's target, out of a list: an argument of `send` would be kept until the next move."""
    if not path.steps:
        return array
    arrived = yield Carry(path, array)
    return arrived.pop()


class _HandOver(Generic[T]):
    """A stage's coroutine on its way between the event loop and the device's thread.

    Attributes:
        arrived: the moved piece with which the coroutine goes on, if any.
        started_move: the move that the thread began last, if other ranks were late and the loop has not got it yet.
    """

    def __init__(self, stage: Coroutine[Any, Any, T], network: Carrier):
        self.arrived = list[torch.Tensor]()
        self.started_move: StartedMove | None = None
        self._stage, self._network, self._closed = stage, network, False
        self._task: asyncio.Task[Any] | None = None
        with suppress(RuntimeError):  # a record is made without a loop
            self._task = asyncio.current_task()

    @property
    def _is_cancelled(self) -> bool:
        return self._closed or (self._task is not None and self._task.cancelling() > 0)

    def advance(self) -> T | Carry | StartedMove:
        """Go on to the next move that waits for other ranks for long or needs the loop, or to the end."""
        while True:
            try:
                carry = cast(Carry, self._stage.send(self.arrived or None))
            except StopIteration as end:
                return cast(T, end.value)
            if self._is_cancelled or (move := self._network.start(*carry)) is None:
                return carry
            if move.moved is None:
                self.started_move = move
                return move
            self.arrived.append(move.moved)
            del carry, move  # else their arrays are kept until the next move

    def close(self) -> None:
        """End the coroutine, unless the thread still runs it, and break the group of a move that is half done."""
        self._closed = True
        if self.started_move is not None:
            self.started_move.abandon(asyncio.CancelledError("the stage was cancelled"))
        if inspect.getcoroutinestate(self._stage) != inspect.CORO_RUNNING:
            self._stage.close()
