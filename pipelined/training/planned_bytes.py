"""The payload that a rank will send in a training step: messages, gradient sums, statistics, moves of a team.

A language model knows its shapes. The shapes of other models come from the meta device: the forward of each stage runs
there once; for a team the code that trains is recorded there. The sum of the step's totals is not counted. With exact
sums a step whose grids do not fit sends its part twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from pipelined.programs.plan import Plan
from pipelined.training.exchange.parcels import Tree, differentiable, tensors_of
from pipelined.training.exchange.skips import Skips
from pipelined.training.job.model import LanguageModel, Model
from pipelined.training.job.numerics import Numerics
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.stages.team_stage import TeamStage
from pipelined.training.teams.team_model import require_team_model
from pipelined.training.teams.team_records import Example, TeamRecord, message_bytes, team_records, without_values


class StageBytes(NamedTuple):
    """The bytes that a rank sends for a stage that it holds.

    Args:
        messages: a microbatch's activations and gradients, by the stage that receives them.
        per_microbatch: to the team for a microbatch.
        per_step: to the team in a training step.
    """

    messages: Mapping[int, int]
    per_microbatch: int = 0
    per_step: int = 0


async def planned_bytes(
    trainer: RankTrainer, cut: Sequence[range], example: Example, numerics: Numerics, *, sums: int
) -> int:
    """The bytes that this rank sends in a step, before any step; all ranks call this together.

    Args:
        cut: the layers of each stage.
        example: a microbatch, whose values do not matter.
        numerics: those of the trainer; a codec codes random numbers.
        sums: the bytes of this rank's gradient sums; see `RankTrainer.planned_sum_bytes`.
    Raises:
        Exception: on all ranks: a layer needs values, and raises this without them.
    Cost: for a team the record of a microbatch, some ms a block; with a codec the coding of at most two chunks for each
        size of message.
    """
    model, plan, rank = trainer.model, trainer.plan, trainer.context.actor.rank
    dtype = next(iter(trainer.local.parameters.values())).dtype
    example = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), example)
    if plan.tensor == 1:
        device = torch.device(trainer.context.executor.device)
        outputs = _outputs(model, cut, example[0], dtype, device=device, numerics=numerics)
        stages = _stage_bytes(list(outputs), trainer.context.skips, numerics.compress)
    else:
        team_model = require_team_model(model)
        held = plan.stages_of(rank)
        exact = replace(numerics, autocast=None)  # it moves as much
        records = team_records(team_model, cut, example, dtype, exact, member=plan.member(rank), held=held)
        stages = [
            await _member_stage_bytes(trainer, index, record, numerics.recompute)
            for index, record in enumerate(list(records))
        ]
    return _bytes_sent(plan, rank, stages) + sums + _statistics_bytes(trainer)


async def _member_stage_bytes(trainer: RankTrainer, index: int, record: TeamRecord, recompute: bool) -> StageBytes:
    """The bytes that a member sends for a stage: moves only for a stage that it holds, and not in shared memory."""
    move_bytes = list[int]()
    stage = trainer.context.stages.get(index)
    if isinstance(stage, TeamStage):
        for moves in (record.first_forward, record.forward, record.backward):
            move_bytes.append(sum([move.itemsize * await stage.network.elements(move.path) for move in moves]))
    first_forward, forward, backward = move_bytes or (0, 0, 0)
    return StageBytes(record.messages, (1 + recompute) * forward + backward, first_forward - forward)


def _bytes_sent(plan: Plan, rank: int, stages: Sequence[StageBytes]) -> int:
    """The bytes that a rank sends in messages between stages, and to its team."""
    group, worker = plan.group_and_worker(rank)
    member = plan.member(rank)
    held = plan.stage_map.held_by(worker)
    total = sum(stages[stage].per_step for stage in dict.fromkeys(stage for _, stage in held))
    for pipe, stage in held:
        count = len(plan.stage_map.microbatches[pipe])
        total += count * stages[stage].per_microbatch
        for receiver, nbytes in stages[stage].messages.items():
            if plan.holder(group, pipe, receiver, member) != rank:
                total += count * nbytes
    return total


def _statistics_bytes(trainer: RankTrainer) -> int:
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


def _stage_bytes(outputs: Sequence[Sequence[torch.Tensor]], skips: Skips, codec: str) -> list[StageBytes]:
    messages = [dict[int, int]() for _ in outputs]
    for stage, output in enumerate(outputs[:-1]):
        for reader, tensors in skips.sent_tensors(stage, output).items():
            messages[stage][reader] = message_bytes(tensors, codec)
            messages[reader][stage] = message_bytes([tensor for tensor in tensors if differentiable(tensor)], codec)
    return [*map(StageBytes, messages)]


def _outputs(
    model: Model, cut: Sequence[range], x: Tree, dtype: torch.dtype, *, device: torch.device, numerics: Numerics
) -> Iterator[list[torch.Tensor]]:
    """The output tensors of each stage, without values."""
    if isinstance(model, LanguageModel) and isinstance(x, torch.Tensor):
        for layers in cut:
            yield [torch.empty(model.shape_of(layers.stop, *x.shape), dtype=dtype, device="meta")]
    elif numerics.autocast is None:
        for layers in cut:
            with torch.no_grad():
                x = model.build(layers, dtype, "meta", None)(x)
            yield tensors_of(x)
    else:
        yield from _outputs_in_autocast(model, cut, x, dtype, device=device, autocast=numerics.autocast)


def _outputs_in_autocast(
    model: Model, cut: Sequence[range], x: Tree, dtype: torch.dtype, *, device: torch.device, autocast: torch.dtype
) -> list[list[torch.Tensor]]:
    """The outputs as tensors without values on the device of the rank.

    Cost: a second of CPU for what torch imports.
    """
    from torch.func import functional_call

    _, mode = without_values(autocast)
    parts = [model.build(layers, dtype, "meta", None) for layers in cut]
    on_device = partial(torch.empty_like, device=device)
    outputs = list[list[torch.Tensor]]()
    with mode, torch.no_grad(), torch.autocast(device.type, autocast):
        x = tree_map_only(torch.Tensor, on_device, x)
        for part in parts:
            tensors = dict(chain(part.named_parameters(), part.named_buffers()))
            x = functional_call(part, {name: on_device(tensor) for name, tensor in tensors.items()}, x)
            outputs.append(tensors_of(x))
    return outputs
