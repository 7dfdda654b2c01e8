"""The record of a microbatch as a member of a team goes through every stage: messages, moves, and kept bytes."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn

from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import Shards, path_between
from pipelined.sharding.operators.stage_record import MoveStep, StageRecord, piece, record
from pipelined.sharding.operators.tape import Tape
from pipelined.sharding.operators.verbs import Value
from pipelined.training.exchange.compression import CHUNK_BYTES, NONE
from pipelined.training.exchange.parcels import Tree, tensors_of
from pipelined.training.job.numerics import Numerics
from pipelined.training.teams.team_model import TeamModel
from transports import pack

Example = tuple[Tree, Tree]
"""Inputs and targets of a microbatch."""


class TeamRecord(NamedTuple):
    """The record of a member's passes through a stage.

    Args:
        messages: bytes of a microbatch's activations and gradients, by the stage that receives them.
        first_forward, forward, backward: the moves of a step's first forward, of any other forward, of a backward.
        kept_bytes: from a forward to its backward, the stage's input and output included.
        boundary_bytes: of the input and the output alone.
    """

    messages: Mapping[int, int]
    first_forward: Sequence[MoveStep]
    forward: Sequence[MoveStep]
    backward: Sequence[MoveStep]
    kept_bytes: int
    boundary_bytes: int


def team_records(
    model: TeamModel,
    cut: Sequence[range],
    example: Example,
    dtype: torch.dtype,
    numerics: Numerics,
    *,
    member: int,
    held: Container[int],
) -> Iterator[TeamRecord]:
    """The record of each stage. Tensors that a member gathers once a step serve all stages that it holds.

    Args:
        held: the stages that the member holds.
    Cost: with autocast a second of CPU for what torch imports.
    """
    recorder = _MemberRecorder(model, example, dtype, numerics, member)
    gathered = dict[str, torch.Tensor]()
    for stage, layers in enumerate(cut):
        yield recorder.record_stage(stage, layers, gathered if stage in held else {})


class _MemberRecorder:
    """Records the stages for one member, in order: the output of each is the input of the next."""

    def __init__(self, model: TeamModel, example: Example, dtype: torch.dtype, numerics: Numerics, member: int):
        (inputs,), (targets,) = map(tensors_of, example)
        self._model = model
        self._member = member
        self._dtype = dtype
        self._numerics = numerics
        self._layouts = model.parameters()
        self._device, self._mode = without_values(numerics.autocast)
        self._input_shards = model.input_shards(tuple(inputs.shape))
        self._input_dtype = inputs.dtype
        self._target_shards = model.input_shards(tuple(targets.shape))
        self._target_dtype = targets.dtype
        self._received = 0  # bytes of the message from the stage before

    def record_stage(self, stage: int, layers: range, gathered: dict[str, torch.Tensor]) -> TeamRecord:
        """The record of the next stage; gathered: see `Tape`."""
        is_last = self._model.layers - 1 in layers
        x, first, later, output = self._record_passes(layers, gathered, trained=stage > 0, is_last=is_last)
        backward = list(later.backward.moves)
        if is_last:
            loss_to_all = path_between(output.shards, Shards(output.shards.mesh, output.shards.lengths, ""))
            backward.append(MoveStep(loss_to_all, output.array.itemsize))
        messages = {stage - 1: self._received} if stage else {}
        self._received = message_bytes([output.array], self._numerics.compress)
        if not is_last:
            messages[stage + 1] = self._received
        self._input_shards = output.shards
        self._input_dtype = self._dtype
        boundary = x.array.nbytes + output.array.nbytes
        return TeamRecord(messages, first.forward.moves, later.forward.moves, backward, later.kept, boundary)

    def _record_passes(
        self, layers: range, gathered: dict[str, torch.Tensor], *, trained: bool, is_last: bool
    ) -> tuple[Value, StageRecord, StageRecord, Value]:
        """The stage's input, the records of a step's first pass and of any later one, and the stage's output."""
        module = self._model.member_model(self._member).build(layers, self._dtype, "meta", None)
        with self._mode:
            x = self._piece(self._input_shards, self._input_dtype, trained=trained)
            targets = self._piece(self._target_shards, self._target_dtype) if is_last else None
            pieces = _pieces(module, self._layouts, self._member, self._device)
            record_pass = partial(record, self._member, gathered=gathered, autocast=self._numerics.autocast)
            return x, *_two_passes(self._model, layers, x, targets, pieces, record_pass=record_pass)

    def _piece(self, shards: Shards, dtype: torch.dtype, trained: bool = False) -> Value:
        return Value(piece(self._member, shards, dtype, trained=False, device=self._device), shards, trained)


def _two_passes(
    model: TeamModel,
    layers: range,
    x: Value,
    targets: Value | None,
    pieces: Mapping[str, torch.Tensor],
    *,
    record_pass: Callable[..., StageRecord],
) -> tuple[StageRecord, StageRecord, Value]:
    """The records of a step's first pass through a stage and of any later one, and the stage's output."""
    outputs = list[Value]()

    async def stage(tape: Tape) -> Value:
        output = await model.run_layers(tape, layers, x, pieces, KeyedRandom(0, 0, 0))  # in training, not in evaluation
        if targets is None:
            output = await tape.move(output, model.stream_shards(output.shards.lengths))
        else:
            output = await model.score(tape, output, targets)
        outputs.append(output)
        return output

    first, later = (record_pass(stage, stage_input=[x.array]) for _ in range(2))
    return first, later, outputs[-1]


def _pieces(module: nn.Module, layouts: Mapping[str, Shards], member: int, device: str) -> dict[str, torch.Tensor]:
    """A member's parameters, each in the shape of its piece, and buffers, all without values."""
    pieces = {
        name: torch.empty_like(tensor, device=device, requires_grad=tensor.requires_grad)
        for name, tensor in chain(module.named_parameters(), module.named_buffers())
    }
    return pieces | {name: pieces[name].view(layouts[name].shape(member)) for name, _ in module.named_parameters()}


def without_values(autocast: torch.dtype | None) -> tuple[str, AbstractContextManager[Any]]:
    """A device for tensors without values, and the context in which they are made and computed with."""
    if autocast is None:
        return "meta", nullcontext()
    from torch._subclasses.fake_tensor import FakeTensorMode

    return "cpu", FakeTensorMode(allow_non_fake_inputs=True)  # autocast leaves the meta device alone


def message_bytes(tensors: Iterable[torch.Tensor], codec: str) -> int:
    """Bytes of these tensors as one message."""
    total = 0
    for tensor in tensors:
        if codec == NONE or not tensor.is_floating_point():
            total += tensor.nbytes
            continue
        chunks, last_bytes = divmod(tensor.nbytes, CHUNK_BYTES)
        total += chunks * _coded_bytes(codec, tensor.dtype, CHUNK_BYTES) if chunks else 0
        total += _coded_bytes(codec, tensor.dtype, last_bytes) if last_bytes else 0
    return total


@cache
def _coded_bytes(codec: str, dtype: torch.dtype, nbytes: int) -> int:
    """Bytes of a chunk of normally distributed numbers."""
    numbers = torch.randn(nbytes // dtype.itemsize, generator=torch.Generator().manual_seed(nbytes))
    return pack(codec, [numbers.to(dtype)]).nbytes
