"""The outline of a stage: its moves in both directions, from shapes alone.

A search prices thousands of ways to split a layer. The record on the meta device runs each computation there; this
outline only believes the layouts that computations state, and asks for the paths of the moves.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import torch

from collectives import Links
from pipelined.sharding.operators.stage_record import MoveStep, piece, run_to_end
from pipelined.sharding.operators.verbs import Operand, Value, is_trained
from pipelined.sharding.path import path_between
from pipelined.sharding.shards import Shards

T = TypeVar("T")


class Outline:
    """Verbs that compute nothing.

    Args:
        rank: the rank of which the pieces are.

    Attributes:
        forward, backward: the moves of each direction, both in the order of the forward.
    """

    def __init__(self, rank: int):
        self.rank = rank
        self.forward, self.backward = list[MoveStep](), list[MoveStep]()

    def run(self, stage: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine over these verbs, which waits for nothing."""
        return run_to_end(stage)

    async def compute(
        self,
        name: str,
        work: Callable[..., torch.Tensor],
        *operands: Operand,
        result: Shards,
        constant: bool = False,
        summand: bool = False,
    ) -> Value:
        """See `Verbs.compute`; the result has the dtype of the last operand, which is a parameter if there is one."""
        last = operands[-1].array if isinstance(operands[-1], Value) else operands[-1]
        return self._value_of_piece(result, last.dtype, not constant and any(map(is_trained, operands)))

    async def move(
        self, value: Value, target: Shards, replicated: Sequence[str] = (), *, regather: bool = False
    ) -> Value:
        """See `Verbs.move`."""
        path = path_between(value.shards, target, replicated=replicated)
        itemsize = value.array.itemsize
        self.forward += [MoveStep(path, itemsize)] if path.steps else []
        if not value.trained:
            return self._value_of_piece(target, value.array.dtype, False)
        self.backward += [MoveStep(path.backward, itemsize)] if path.backward.steps else []
        return self._value_of_piece(target, value.array.dtype, True) if path.steps else Value(value.array, target, True)

    def note(self, noted: Any) -> None:
        """See `Verbs.note`."""

    def seconds(self, links: Links, node: int = 0) -> tuple[float, float]:
        """Seconds of the moves there, and of those back; see `Path.seconds`."""
        directions = self.forward, self.backward
        seconds = [[step.path.seconds(links, step.itemsize, node) for step in steps] for steps in directions]
        return sum(seconds[0]), sum(seconds[1])

    def _value_of_piece(self, shards: Shards, dtype: torch.dtype, trained: bool) -> Value:
        return Value(piece(self.rank, shards, dtype, trained=False), shards, trained)
