"""The tape: it reads a stage forward and back. Autograd is cut around every computation, and the tape is walked back.

A computation runs on leaves of its own, so its graph ends at them. The tape keeps, in order, each computation and each
move; a backward goes through them in reverse. When it comes to a computation, all uses of its result have given their
gradients, so each local graph is walked once, in one order on all ranks, and the moves of the gradients are awaited
like those of the forward: the event loop is never blocked.
"""

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from pipelined.actors.device.executor import ComputeQueue
from pipelined.sharding.operators.hand_over import Carrier, carry_piece, run_stage
from pipelined.sharding.operators.verbs import Operand, ShardedWeight, Value, is_trained
from pipelined.sharding.path import Path, path_between
from pipelined.sharding.shards import Shards

T = TypeVar("T")


@dataclass(frozen=True)
class Computation:
    """One computation: its inputs with their leaves, and its result with the graph that leads to them."""

    name: str
    inputs: tuple[tuple[Value, torch.Tensor], ...]
    parameters: tuple[torch.Tensor, ...]
    result: Value
    produced: torch.Tensor


@dataclass(frozen=True)
class TapeMove:
    """One move."""

    value: Value
    moved: Value
    path: Path


WeightWork = Callable[[], None]
"""What a computation leaves to the weight half of a backward."""
Back = Callable[[Computation], WeightWork | None]
"""Walks one computation back, and returns what it leaves."""


class Tape:
    """Computes and moves, and walks both back.

    Args:
        network: carries pieces: `MeshGroups`, or what notes that it would.
        queue: computes: an executor, or what counts.
        training: False: nothing is kept for a backward.
        autocast: the dtype of multiplications; None: that of the values. Results, parameters and sums keep the latter.
        gathered: weights by name, gathered from parts that are not to be gathered again: once for all tapes that share
            this, until the caller clears it. None: each tape gathers its own.

    Attributes:
        noted: what the layers noted beside their results, in order.

    Gradients of parameters gather in their `grad`, as partial sums over the axes on which they are broadcast. All
    coroutines of a tape are awaited inside one that `run` runs.
    """

    def __init__(
        self,
        network: Carrier,
        queue: ComputeQueue,
        training: bool = True,
        autocast: torch.dtype | None = None,
        *,
        gathered: dict[str, torch.Tensor] | None = None,
    ):
        self.network = network
        self.queue = queue
        self.training = training
        self.autocast = autocast
        self.gathered = gathered
        self.rank = network.rank
        self._freed = dict[Operand, TapeMove | None]()
        self._entries: list[Computation | TapeMove] = []
        self._weight_work: list[WeightWork | TapeMove] = []
        self.noted: list[Any] = []

    async def run(self, stage: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of this tape: see `run_stage`."""
        return await run_stage(stage, self.queue, self.network)

    async def compute(
        self,
        name: str,
        work: Callable[..., torch.Tensor],
        *operands: Operand,
        result: Shards,
        constant: bool = False,
        summand: bool = False,
    ) -> Value:
        """See `Verbs.compute`.

        Raises:
            ValueError: the work returns another shape than the layout has; the text names the rank.
            RuntimeError: an operand was freed after its first use.
        """
        self._require_held(name, operands)
        arrays = [self._leaf(operand) for operand in operands]
        with torch.set_grad_enabled(self.training):
            produced = self._cast(work, arrays) if self.autocast else work(*arrays)
        if tuple(produced.shape) != result.shape(self.rank):
            shapes = f"rank: {self.rank}, got: {tuple(produced.shape)}, layout's: {result.shape(self.rank)}"
            raise ValueError(f"{name} gave another shape ({shapes})")
        self._free(operands)
        value = Value(produced.detach(), result, not constant and any(map(is_trained, operands)))
        if value.trained and self.training:
            self._entries.append(_entry_of(name, operands, arrays, value, produced))
            if summand:
                self._freed[value] = None
        return value

    def _cast(self, work: Callable[..., torch.Tensor], arrays: Sequence[torch.Tensor]) -> torch.Tensor:
        with torch.autocast(arrays[0].device.type, self.autocast):
            result = work(*arrays)
        return result.float() if result.dtype == self.autocast else result

    def _leaf(self, operand: Operand) -> torch.Tensor:
        if not isinstance(operand, Value):
            return operand
        return operand.array.detach().requires_grad_(operand.trained and self.training)

    async def move(
        self, value: Value, target: Shards, replicated: Sequence[str] = (), *, regather: bool = False
    ) -> Value:
        """See `Verbs.move`."""
        path = path_between(value.shards, target, replicated=replicated)
        self._require_held("a move", [value])
        moved = Value(await self._carry(path, value), target, value.trained, weight=value.weight)
        if value.trained and self.training:
            self._entries.append(TapeMove(value, moved, path))
            if regather and path.steps:
                self._freed[moved] = TapeMove(value, moved, path)
        return moved

    async def _carry(self, path: Path, value: Value) -> torch.Tensor:
        if self.gathered is None or not isinstance(value, ShardedWeight) or value.regather:
            return await carry_piece(path, value.array)
        if value.name not in self.gathered:
            self.gathered[value.name] = await carry_piece(path, value.array)
        return self.gathered[value.name]

    def _require_held(self, name: str, operands: Iterable[Operand]) -> None:
        for operand in operands:
            if isinstance(operand, Value) and operand in self._freed and _is_freed(operand.array):
                fact = f"{name} takes a tensor that was freed after its first use (rank: {self.rank})"
                raise RuntimeError(f"{fact}; move it without `regather`, or once for each use")

    def _free(self, operands: Iterable[Operand]) -> None:
        """Free the memory of those operands that have one use; graphs keep views of it."""
        for operand in operands:
            if isinstance(operand, Value) and operand in self._freed:
                operand.array.untyped_storage().resize_(0)

    async def _regather(self, values: Iterable[Value]) -> None:
        """Move those values again whose memory was freed, into the same memory; autograd counts no change of them."""
        for value in values:
            if moved := self._freed.get(value):
                regathered = await carry_piece(moved.path, moved.value.array)
                value.array.untyped_storage().resize_(value.array.numel() * value.array.element_size())
                value.array.data.copy_(regathered)
                del regathered  # before the next one comes

    def note(self, noted: Any) -> None:
        """See `Verbs.note`."""
        self.noted.append(noted)

    def values(self) -> Iterator[Value]:
        """The values that are kept for the backward, some of them several times."""
        for entry in self._entries:
            if isinstance(entry, TapeMove):
                yield from (entry.value, entry.moved)
            else:
                yield from (entry.result, *(value for value, _ in entry.inputs))

    def parameters(self) -> Iterator[torch.Tensor]:
        """The parameters' pieces that get gradients, and weights gathered for a step; some of them several times."""
        for entry in self._entries:
            if isinstance(entry, Computation):
                yield from entry.parameters
            elif isinstance(entry.value, ShardedWeight):
                yield entry.value.piece
                if not entry.value.regather:
                    yield entry.moved.array

    async def backward(self, value: Value, gradient: torch.Tensor, back: Back | None = None) -> None:
        """Walk back from a value.

        Args:
            gradient: this rank's piece of the value's gradient, in the layout of its cotangent.
            back: walks one computation back, as `compute_back`, its default, does. What it returns waits for
                `backward_weights`, with the moves of gradients that only this gives.
        """
        value.gradient = gradient
        while self._entries:
            entry = self._entries.pop()
            if not isinstance(entry, TapeMove):
                inputs = [value for value, _ in entry.inputs]
                await self._regather(inputs)
                if (weight_work := (back or compute_back)(entry)) is not None:
                    self._weight_work.append(weight_work)
                self._free(value for value in inputs if value.weight or weight_work is None)
            elif entry.value.weight and entry.moved.gradient is None:
                self._weight_work.append(entry)
            else:
                await self._move_back(entry)

    async def backward_weights(self) -> None:
        """Do what `backward` has left, once: compute the gradients of weights, and move those of sharded weights.

        Cost: until then it keeps the other inputs of these computations, gathered ones too.
        """
        work, self._weight_work = self._weight_work, []
        for entry in work:
            if isinstance(entry, TapeMove):
                await self._move_back(entry)
            else:
                entry()

    async def _move_back(self, entry: TapeMove) -> None:
        if entry.moved.gradient is not None:
            entry.value.add(await carry_piece(entry.path.backward, entry.moved.gradient))


def _is_freed(array: torch.Tensor) -> bool:
    return array.numel() > 0 and not array.untyped_storage().nbytes()


def compute_back(entry: Computation) -> None:
    """Give each input its gradient, zeros where this rank's piece has no part in the result.

    Whether a value has a gradient, which then is moved, must be the same on all ranks.
    """
    if entry.result.gradient is None:
        return
    if entry.produced.requires_grad:
        torch.autograd.backward(entry.produced, entry.result.gradient)
    for value, leaf in entry.inputs:
        if value.trained:
            value.add(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)


def sum_path(parameter: Shards) -> Path:
    """The moves of a parameter's gradient: from a partial sum on the axes that do not split it, to its own layout."""
    summand = Shards(parameter.mesh, parameter.lengths, parameter.layout.cotangent(parameter.mesh))
    return path_between(summand, parameter)


async def sum_gradients(network: Carrier, parameters: Iterable[tuple[torch.Tensor, Shards]]) -> None:
    """Sum, in place, the gradients of this rank's pieces, after the microbatches of a step.

    Args:
        parameters: the pieces, in the shape of their shards or flattened from it, with how they lie; in one order on
            all ranks.
    Cost: 2 (p0-1)/p0 · kn/(p1·p2) elements for a multiplication's weight.
    """
    for piece, shards in parameters:
        summing = sum_path(shards)
        if piece.grad is None:
            piece.grad = torch.zeros_like(piece)
        if summing.steps:
            summed = await network.carry(summing, piece.grad.view(shards.shape(network.rank)))
            piece.grad.copy_(summed.view_as(piece))


def _entry_of(
    name: str, operands: Sequence[Operand], arrays: Sequence[torch.Tensor], value: Value, produced: torch.Tensor
) -> Computation:
    """The entry of a computation: its values with the leaves that stood for them, and its parameters."""
    pairs = zip(operands, arrays, strict=True)
    inputs = tuple((operand, leaf) for operand, leaf in pairs if isinstance(operand, Value))
    return Computation(
        name, inputs, tuple(operand for operand in operands if isinstance(operand, torch.Tensor)), value, produced
    )
