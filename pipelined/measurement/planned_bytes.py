"""The payload that a rank sends in a step, worked out: messages, gradient sums, statistics, moves of a team.

A language model knows its shapes. Those of others come from the meta device: each stage's forward is run there once,
by a team as the record of the code that trains. The sum of the step's totals is not counted. With exact sums a step
whose grids do not fit sends its part twice.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from pipelined.programs.plan import Plan
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import Shards, path_between
from pipelined.sharding.operators.stage_record import MoveStep, StageRecord, piece, record
from pipelined.sharding.operators.tape import Tape
from pipelined.sharding.operators.verbs import Value
from pipelined.training.exchange.compression import CHUNK_BYTES, NONE
from pipelined.training.exchange.parcels import Tree, differentiable, tensors_of
from pipelined.training.exchange.skips import Skips
from pipelined.training.job import Numerics
from pipelined.training.model import LanguageModel, Model
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.teams.team_model import TeamModel, require_team_model
from pipelined.training.teams.team_stage import TeamStage
from transports import pack

Example = tuple[Tree, Tree]
"""Inputs and targets of a microbatch."""


class StageBytes(NamedTuple):
    """The bytes that a rank sends for a stage that it holds.

    Args:
        messages: of a microbatch, activations and gradients, by the stage that they go to.
        moved: to the team for a microbatch.
        once: to the team in a step.
    """

    messages: Mapping[int, int]
    moved: int = 0
    once: int = 0


class TeamRecord(NamedTuple):
    """A stage as a member of a team goes through it.

    Args:
        messages: as of `StageBytes`.
        first, forward, backward: the moves of the first forward of a step, of any other, and of a backward.
        kept: bytes from a forward to its backward, the stage's input and output included.
        boundary: bytes of the input and the output alone.
    """

    messages: Mapping[int, int]
    first: Sequence[MoveStep]
    forward: Sequence[MoveStep]
    backward: Sequence[MoveStep]
    kept: int
    boundary: int


async def planned_bytes(
    trainer: RankTrainer, cut: Sequence[range], example: Example, numerics: Numerics, *, sums: int
) -> int:
    """Bytes of this rank in a step, before its first one; all ranks call this together.

    Args:
        cut: the layers of each stage.
        example: its values do not matter.
        numerics: of the trainer; a codec is given random numbers.
        sums: of them those of gradient sums, see `RankTrainer.planned_sum_bytes`.
    Raises:
        Exception: as a layer raises it that needs values, on all ranks.
    Cost: for a team the record of a microbatch, some ms a block; with a codec the coding of at most two chunks for each
        size of message.
    """
    model, plan, rank = trainer.model, trainer.plan, trainer.context.actor.rank
    dtype = next(iter(trainer.local.parameters.values())).dtype
    example = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), example)
    if plan.tensor == 1:
        device = torch.device(trainer.context.executor.device)
        outputs = _outputs(model, cut, example[0], dtype, device=device, numerics=numerics)
        stages = _stages(list(outputs), trainer.context.skips, numerics.compress)
    else:
        held, exact = plan.stages_of(rank), replace(numerics, autocast=None)  # it moves as much
        records = list(
            team_records(require_team_model(model), cut, example, dtype, exact, member=plan.member(rank), held=held)
        )
        stages = [await _of_team(trainer, index, record, numerics.recompute) for index, record in enumerate(records)]
    messages, moved = _bytes_sent(plan, rank, stages)
    return messages + moved + sums + _statistics(trainer)


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
    """What a member does for each stage; what it gathers for a step serves all stages that it holds.

    Cost: with autocast a second of CPU for what torch imports.
    """
    (inputs,), (targets,) = map(tensors_of, example)
    device, mode = _without_values(numerics.autocast)
    received = 0  # bytes of the message from the stage before
    gathered = dict[str, torch.Tensor]()
    layouts = model.parameters()
    input_shards = model.ids(tuple(inputs.shape))
    input_dtype = inputs.dtype
    target_shards = model.ids(tuple(targets.shape))
    for stage, layers in enumerate(cut):
        last = model.layers - 1 in layers
        module = model.of_member(member).build(layers, dtype, "meta", None)
        with mode:
            x = _piece(input_shards, input_dtype, member=member, device=device, trained=stage > 0)
            own_targets = _piece(target_shards, targets.dtype, member=member, device=device) if last else None
            pieces = _pieces(module, layouts, member, device)
            shared = gathered if stage in held else {}
            record_pass = partial(record, member, gathered=shared, autocast=numerics.autocast)
            first, later, output = _two_passes(model, layers, x, own_targets, pieces, record_pass=record_pass)
        backward = list(later.backward.moves)
        if last:
            loss_to_all = path_between(output.shards, Shards(output.shards.mesh, output.shards.lengths, ""))
            backward.append(MoveStep(loss_to_all, output.array.itemsize))
        messages = {stage - 1: received} if stage else {}
        received = _message([output.array], numerics.compress)
        if not last:
            messages[stage + 1] = received
        boundary = x.array.nbytes + output.array.nbytes
        yield TeamRecord(messages, first.forward.moves, later.forward.moves, backward, later.kept, boundary)
        input_shards = output.shards
        input_dtype = dtype


async def _of_team(trainer: RankTrainer, index: int, record: TeamRecord, recompute: bool) -> StageBytes:
    """What a member sends for a stage, to its team for one that it holds alone; through shared memory nothing."""
    sent = list[int]()
    stage = trainer.context.stages.get(index)
    if isinstance(stage, TeamStage):
        for moves in (record.first, record.forward, record.backward):
            sent.append(sum([move.itemsize * await stage.network.elements(move.path) for move in moves]))
    first, forward, backward = sent or (0, 0, 0)
    return StageBytes(record.messages, (1 + recompute) * forward + backward, first - forward)


def _bytes_sent(plan: Plan, rank: int, stages: Sequence[StageBytes]) -> tuple[int, int]:
    """What a rank sends in messages between stages, and to its team."""
    group, worker = plan.group_and_worker(rank)
    member = plan.member(rank)
    held = plan.stage_map.held_by(worker)
    messages = 0
    moved = sum(stages[stage].once for stage in dict.fromkeys(stage for _, stage in held))
    for pipe, stage in held:
        count = len(plan.stage_map.microbatches[pipe])
        moved += count * stages[stage].moved
        for to, nbytes in stages[stage].messages.items():
            if plan.holder(group, pipe, to, member) != rank:
                messages += count * nbytes
    return messages, moved


def _statistics(trainer: RankTrainer) -> int:
    """Bytes of running statistics, mean and variance of each norm and microbatch, to the other holders of a stage."""
    context = trainer.context
    plan = trainer.plan
    total = 0
    for pipe, stage in plan.stage_map.held_by(context.worker):
        norms = [getattr(module, "running_mean", None) for module in trainer.local.modules[stage].modules()]
        nbytes = sum(2 * mean.nbytes for mean in norms if isinstance(mean, torch.Tensor))
        peers = len(plan.holders(stage, member=context.member)) - 1
        total += len(plan.stage_map.microbatches[pipe]) * peers * nbytes
    return total


def _stages(outputs: Sequence[Sequence[torch.Tensor]], skips: Skips, codec: str) -> list[StageBytes]:
    messages = [dict[int, int]() for _ in outputs]
    for stage, output in enumerate(outputs[:-1]):
        for reader, tensors in skips.sent(stage, output).items():
            messages[stage][reader] = _message(tensors, codec)
            messages[reader][stage] = _message([tensor for tensor in tensors if differentiable(tensor)], codec)
    return [*map(StageBytes, messages)]


def _outputs(
    model: Model, cut: Sequence[range], x: Tree, dtype: torch.dtype, *, device: torch.device, numerics: Numerics
) -> Iterator[list[torch.Tensor]]:
    """The tensors that each stage gives, without values."""
    if isinstance(model, LanguageModel) and isinstance(x, torch.Tensor):
        for layers in cut:
            yield [torch.empty(model.shape_of(layers.stop, *x.shape), dtype=dtype, device="meta")]
    elif numerics.autocast is None:
        for layers in cut:
            with torch.no_grad():
                x = model.build(layers, dtype, "meta", None)(x)
            yield tensors_of(x)
    else:
        yield from _in_autocast(model, cut, x, dtype, device=device, autocast=numerics.autocast)


def _in_autocast(
    model: Model, cut: Sequence[range], x: Tree, dtype: torch.dtype, *, device: torch.device, autocast: torch.dtype
) -> list[list[torch.Tensor]]:
    """The outputs as tensors without values that name the rank's own device.

    Cost: a second of CPU for what torch imports.
    """
    from torch.func import functional_call

    _, mode = _without_values(autocast)
    parts = [model.build(layers, dtype, "meta", None) for layers in cut]
    moved = partial(torch.empty_like, device=device)
    outputs = list[list[torch.Tensor]]()
    with mode, torch.no_grad(), torch.autocast(device.type, autocast):
        x = tree_map_only(torch.Tensor, moved, x)
        for part in parts:
            tensors = dict(chain(part.named_parameters(), part.named_buffers()))
            x = functional_call(part, {name: moved(tensor) for name, tensor in tensors.items()}, x)
            outputs.append(tensors_of(x))
    return outputs


def _message(tensors: Iterable[torch.Tensor], codec: str) -> int:
    """Bytes of these tensors as one message."""
    total = 0
    for tensor in tensors:
        coded = codec != NONE and tensor.is_floating_point()
        chunks, rest = divmod(tensor.nbytes, CHUNK_BYTES) if coded else (0, tensor.nbytes)
        total += chunks * _coded_bytes(codec, tensor.dtype, CHUNK_BYTES) if chunks else 0
        total += _coded_bytes(codec, tensor.dtype, rest) if coded and rest else rest
    return total


@cache
def _coded_bytes(codec: str, dtype: torch.dtype, nbytes: int) -> int:
    """Bytes of a chunk of normally distributed numbers."""
    numbers = torch.randn(nbytes // dtype.itemsize, generator=torch.Generator().manual_seed(nbytes))
    return pack(codec, [numbers.to(dtype)]).nbytes


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
        output = await model.part(tape, layers, x, pieces, KeyedRandom(0, 0, 0))  # in training, not in evaluation
        if targets is None:
            output = await tape.move(output, model.between(output.shards.lengths))
        else:
            output = await model.score(tape, output, targets)
        outputs.append(output)
        return output

    first, later = (record_pass(stage, given=[x.array]) for _ in range(2))
    return first, later, outputs[-1]


def _piece(shards: Shards, dtype: torch.dtype, *, member: int, device: str, trained: bool = False) -> Value:
    return Value(piece(member, shards, dtype, trained=False, device=device), shards, trained)


def _pieces(module: nn.Module, layouts: Mapping[str, Shards], member: int, device: str) -> dict[str, torch.Tensor]:
    """A member's parameters, each in the shape of its piece, and buffers, all without values."""
    named = chain(module.named_parameters(), module.named_buffers())
    pieces = {name: torch.empty_like(each, device=device, requires_grad=each.requires_grad) for name, each in named}
    return pieces | {name: pieces[name].view(layouts[name].shape(member)) for name, _ in module.named_parameters()}


def _without_values(autocast: torch.dtype | None) -> tuple[str, AbstractContextManager[Any]]:
    """A device for tensors without values, and what is entered to make them and to compute with them."""
    if autocast is None:
        return "meta", nullcontext()
    from torch._subclasses.fake_tensor import FakeTensorMode

    return "cpu", FakeTensorMode(allow_non_fake_inputs=True)  # autocast leaves the meta device alone
