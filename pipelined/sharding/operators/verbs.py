"""The two verbs of a sharded stage: compute, on what this rank holds, and move, from one layout to another.

A stage is a coroutine over them, and each rank runs it for its own pieces. A `Verbs` gives them their meaning:
`tape.Tape` runs it and walks it back; `stage_record.record` reads it for its steps alone. The coroutine awaits nothing
else: it runs in the thread of the device, and only its moves in the event loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from pipelined.sharding.shards import Shards


@dataclass(eq=False)
class Value:
    """A tensor of a stage, as one rank holds it.

    Args:
        array: the rank's own piece, without a history of autograd.
        shards: what every rank holds.
        trained: whether a gradient is wanted.
        gradient: this rank's piece of the gradient, in the layout `shards.layout.cotangent` (a backward sets it).
        weight: whether it is a parameter, so that the weight half of a backward computes its gradient.
    """

    array: torch.Tensor
    shards: Shards
    trained: bool = True
    gradient: torch.Tensor | None = field(default=None, repr=False)
    weight: bool = False

    def add(self, gradient: torch.Tensor) -> None:
        """Add the gradient that one use of the tensor gives."""
        self.gradient = gradient if self.gradient is None else self.gradient + gradient


@dataclass(eq=False)
class ShardedWeight(Value):
    """This rank's part of a parameter's piece, which is gathered where it is used; its gradient gathers in the tensor.

    Args:
        piece: the parameter, or a view of it in the shape of the shards.
        name: of the parameter.
        regather: whether what is gathered is freed after each use (ZeRO-3), or kept for the others (ZeRO-2).
    """

    piece: torch.Tensor = field(kw_only=True)
    name: str = field(kw_only=True)
    regather: bool = field(kw_only=True)

    @classmethod
    def of(cls, piece: torch.Tensor, shards: Shards, name: str = "", *, regather: bool = True) -> "ShardedWeight":
        """A part that lies as these shards."""
        value = piece.detach()
        trained = piece.requires_grad
        return cls(value, shards, trained, weight=True, piece=piece, name=name, regather=regather)

    def add(self, gradient: torch.Tensor) -> None:
        torch.autograd.backward(self.piece, gradient)


Operand = Value | torch.Tensor
"""What a computation takes: a value, or this rank's piece of a parameter."""


async def unshard(verbs: "Verbs", operand: Operand, shards: Shards) -> Operand:
    """A rank's piece of a parameter as an operator takes it; one that is sharded is gathered, each way."""
    if isinstance(operand, torch.Tensor) or operand.shards.layout == shards.layout:
        return operand
    return await verbs.move(operand, shards, regather=is_regathered(operand))


def is_regathered(operand: Operand) -> bool:
    """Whether the operator that takes this weight frees what it gathers, and gathers it again in the backward."""
    return isinstance(operand, ShardedWeight) and operand.regather


def is_trained(operand: Operand) -> bool:
    """Whether a gradient comes to it."""
    return operand.trained if isinstance(operand, Value) else operand.requires_grad


class Verbs(Protocol):
    """The two verbs of a stage, with what executes them.

    Attributes:
        rank: this rank's number in the stage's meshes.
    """

    rank: int

    async def compute(
        self,
        name: str,
        work: Callable[..., torch.Tensor],
        *operands: Operand,
        result: Shards,
        constant: bool = False,
        summand: bool = False,
    ) -> Value:
        """Compute on this rank's pieces alone.

        Args:
            name: of the operator, for errors.
            work: takes the operands' tensors, and returns this rank's piece of the result; it changes none of them.
            result: how the result lies.
            constant: the result has no gradient.
            summand: free the result after its one use, a sum, whose backward does not read it.
        """

    async def move(
        self, value: Value, target: Shards, replicated: Sequence[str] = (), *, regather: bool = False
    ) -> Value:
        """Move a value to another layout, on the same mesh or on another one of the same ranks.

        Args:
            replicated: the axes whose ranks compute the same with the moved value (see `Layout.cotangent`).
            regather: free what is moved after its one use, and move it again for the backward.
        """

    def note(self, noted: Any) -> None:
        """Keep what a forward would write to buffers, for the stage to write after the step."""
