"""The record of a stage: its computations, moves and memory on one rank, and their price, from the meta device.

The tape that trains also records: here its device counts operations, and its network notes the paths. So what is
priced is what runs, in the same order, backward included, with a computation for each hand-over to the device.
"""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.utils.flop_counter import FlopCounterMode

from collectives import Links
from pipelined.sharding.operators.tape import Back, Tape
from pipelined.sharding.operators.verbs import Value
from pipelined.sharding.path import Path
from pipelined.sharding.shards import Shards
from pipelined.sharding.shared_memory import StartedMove

T = TypeVar("T")


@dataclass(frozen=True)
class ComputeStep:
    """What is computed between two moves, in one hand-over to the device.

    Args:
        operations: floating-point operations of its multiplications on this rank.
    """

    operations: int


@dataclass(frozen=True)
class MoveStep:
    """One path that is not empty.

    Args:
        itemsize: bytes of an element.
    """

    path: Path
    itemsize: int


@dataclass(frozen=True)
class PhaseRecord:
    """What one rank does in one direction of a stage.

    Args:
        rank: the rank.
        steps: what it does, in order.
    """

    rank: int
    steps: Sequence[ComputeStep | MoveStep]

    @property
    def nbytes(self) -> int:
        """The bytes that the rank sends."""
        return sum(move.itemsize * move.path.elements(self.rank) for move in self.moves)

    @property
    def moves(self) -> list[MoveStep]:
        """The paths among the steps, in order."""
        return [step for step in self.steps if isinstance(step, MoveStep)]

    def seconds(self, links: Links, speed: float, node: int = 0) -> float:
        """How long it takes, one step after another.

        Args:
            speed: operations a second.
            node: ranks of a node; see `pipelined.sharding.collective_moves.Move.seconds`.
        """
        return sum(
            step.operations / speed if isinstance(step, ComputeStep) else step.path.seconds(links, step.itemsize, node)
            for step in self.steps
        )


@dataclass(frozen=True)
class StageRecord:
    """What one rank does in a stage.

    Args:
        forward, backward: the two directions.
        weights: what a backward's input half leaves to its weight half; no steps where the backward is whole.
        kept: bytes that are kept from the forward for the backward, parameters not counted.
    """

    forward: PhaseRecord
    backward: PhaseRecord
    weights: PhaseRecord
    kept: int


def record(
    rank: int,
    stage: Callable[[Tape], Coroutine[Any, Any, Value]],
    back: Back | None = None,
    *,
    gathered: dict[str, torch.Tensor] | None = None,
    autocast: torch.dtype | None = None,
    stage_input: Iterable[torch.Tensor] = (),
) -> StageRecord:
    """Read a stage forward and back for one rank; no tensor has memory.

    Args:
        stage: its inputs and parameters have no values (`piece` makes them).
        gathered, autocast: as of a `Tape`.
        stage_input: its tensors, which are kept besides.
        back: as of its `backward`.
    """
    recorder = _Recorder(rank)
    tape = Tape(recorder, recorder, autocast=autocast, gathered=gathered)
    kept = _Kept()
    with torch.autograd.graph.saved_tensors_hooks(kept.add, lambda tensor: tensor):
        result = run_to_end(tape.run(stage(tape)))
    steps, recorder.steps = recorder.steps, []
    forward = PhaseRecord(rank, steps)
    for tensor in stage_input:
        kept.add(tensor)
    kept_bytes = kept.nbytes(tape)
    run_to_end(tape.run(tape.backward(result, torch.empty_like(result.array), back)))
    backward, recorder.steps = PhaseRecord(rank, recorder.steps), []
    run_to_end(tape.run(tape.backward_weights()))
    return StageRecord(forward, backward, PhaseRecord(rank, recorder.steps), kept_bytes)


def count_kept_bytes(
    rank: int, part: Callable[[Tape], Coroutine[Any, Any, Value]], kept_elsewhere: Sequence[torch.Tensor] = ()
) -> int:
    """Bytes that a part of a stage keeps for the backward, as a record of the whole stage counts them.

    Args:
        part: its tensors are on the meta device.
        kept_elsewhere: what it may keep and another part has counted.
    """
    recorder = _Noting(rank)
    tape = Tape(recorder, recorder)
    kept = _Kept()
    with torch.autograd.graph.saved_tensors_hooks(kept.add, lambda tensor: tensor):
        run_to_end(tape.run(part(tape)))
    return kept.nbytes(tape, kept_elsewhere)


def piece(rank: int, shards: Shards, dtype: torch.dtype, trained: bool = True, *, device: str = "meta") -> torch.Tensor:
    """A rank's piece of a parameter; on the meta device, or on one that stands without values for this."""
    return torch.empty(shards.shape(rank), dtype=dtype, device=device).requires_grad_(trained)


def run_to_end(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("a stage waits for something else than its verbs; use compute and move alone")


class _Recorder:
    """A queue of work that counts operations, and a network that notes moves."""

    def __init__(self, rank: int):
        self.rank = rank
        self.steps = list[ComputeStep | MoveStep]()

    async def run(self, op: str, work: Callable[[], T]) -> tuple[T, float, float]:
        with FlopCounterMode(display=False) as counter:
            result = work()
        self.steps.append(ComputeStep(counter.get_total_flops()))
        return result, 0.0, 0.0

    def start(self, path: Path, array: torch.Tensor) -> None:
        """Nothing: each move is noted by itself."""

    async def finish(self, move: StartedMove) -> torch.Tensor:
        raise RuntimeError("a recorded move is not begun")

    async def carry(self, path: Path, array: torch.Tensor) -> torch.Tensor:
        self.steps.append(MoveStep(path, array.element_size()))
        return array.new_empty(path.target.shape(self.rank))


class _Noting(_Recorder):
    """The same, without counting operations, which takes most of the time."""

    async def run(self, op: str, work: Callable[[], T]) -> tuple[T, float, float]:
        return work(), 0.0, 0.0


class _Kept:
    """The storages of tensors, each counted once."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        self._storages[storage._cdata] = storage
        return tensor

    def nbytes(self, tape: Tape, uncounted: Sequence[torch.Tensor] = ()) -> int:
        """With what the tape itself keeps, and without parameters and these others."""
        for value in tape.values():
            self.add(value.array)
        uncounted_storages = {tensor.untyped_storage()._cdata for tensor in (*tape.parameters(), *uncounted)}
        return sum(storage.nbytes() for address, storage in self._storages.items() if address not in uncounted_storages)
