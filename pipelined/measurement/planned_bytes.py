"""The payload that a rank sends in a step, worked out: messages, gradient sums, statistics, moves of a team.

A language model knows its shapes. Those of others come from the meta device: each stage's forward is run there once,
by a team as the record of the code that trains. The sum of the step's totals is not counted. With exact sums a step
whose grids do not fit sends its part twice.
"""

import math
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_map_only

from pipelined.programs.plan import Plan
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import Shards
from pipelined.sharding.operators.record import piece, record
from pipelined.sharding.operators.tape import Tape, sum_path
from pipelined.sharding.operators.verbs import Value
from pipelined.sharding.path import path
from pipelined.training.exchange.stream import Tree, differentiable, tensors_of
from pipelined.training.model import LanguageModel, Model
from pipelined.training.teams.model import TeamModel, split_model
from pipelined.training.trainer import RankTrainer

Example = tuple[Tree, Tree]
"""Inputs and targets of a microbatch."""


class StageBytes(NamedTuple):
    """What a rank sends for a stage, if it holds it.

    Args:
        activation, gradient: of a microbatch, to the stages behind and before.
        moved: to the team for a microbatch.
        once: to the team in a step.
    """

    activation: int
    gradient: int
    moved: int = 0
    once: int = 0


def planned_bytes(
    trainer: RankTrainer, cut: Sequence[range], example: Example, *, sums: int, recompute: bool, ratio: float = 1.0
) -> int:
    """Bytes of this rank in a step, before its first one.

    Args:
        cut: the layers of each stage.
        example: its values do not matter.
        sums: of them those of gradient sums, see `RankTrainer.planned_sum_bytes`.
        recompute: whether a forward runs again before its backward.
        ratio: bytes that a codec sends for a byte of a message.
    Raises:
        Exception: as a layer raises it that needs values.
    Cost: for a team the record of a microbatch, some ms a block.
    """
    model, plan, rank, local = trainer.model, trainer.plan, trainer.context.actor.rank, trainer.local
    dtype, member = next(iter(local.parameters.values())).dtype, plan.member(rank)
    example = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), example)
    if plan.tensor == 1:
        stages = list(_stages(model, cut, example[0], dtype))
    else:
        own, held = split_model(model), plan.stages_of(rank)
        stages = list(_team_stages(own, cut, example, dtype, member=member, held=held, recompute=recompute))
    messages, moved = _sent(plan, rank, stages)
    total = round(messages * ratio) + moved + sums + _statistics(trainer)
    if plan.tensor == 1 or local.divided:
        return total
    lie = split_model(model).parameters()
    return total + dtype.itemsize * sum(sum_path(lie[name]).elements(member) for name in local.parameters)


def _sent(plan: Plan, rank: int, stages: Sequence[StageBytes]) -> tuple[int, int]:
    """What a rank sends in messages between stages, and to its team."""
    group, worker = plan.position(rank)
    member, held = plan.member(rank), plan.layout.held_by(worker)
    messages, moved = 0, sum(stages[stage].once for stage in dict.fromkeys(stage for _, stage in held))
    for pipe, stage in held:
        count = len(plan.layout.microbatches[pipe])
        moved += count * stages[stage].moved
        if stage + 1 < plan.depth and plan.holder(group, pipe, stage + 1, member) != rank:
            messages += count * stages[stage].activation
        if stage and plan.holder(group, pipe, stage - 1, member) != rank:
            messages += count * stages[stage].gradient
    return messages, moved


def _statistics(trainer: RankTrainer) -> int:
    """Bytes of running statistics, mean and variance of each norm and microbatch, to the other holders of a stage."""
    context, plan, total = trainer.context, trainer.plan, 0
    for pipe, stage in plan.layout.held_by(context.worker):
        norms = [getattr(module, "running_mean", None) for module in trainer.local.modules[stage].modules()]
        nbytes = sum(2 * mean.nbytes for mean in norms if isinstance(mean, torch.Tensor))
        peers = len(plan.holders(stage, member=context.member)) - 1
        total += len(plan.layout.microbatches[pipe]) * peers * nbytes
    return total


def _stages(model: Model, cut: Sequence[range], x: Tree, dtype: torch.dtype) -> Iterator[StageBytes]:
    came = 0
    if isinstance(model, LanguageModel) and isinstance(x, torch.Tensor):
        for layers in cut:
            output = dtype.itemsize * math.prod(model.shape_of(layers.stop, *x.shape))
            yield StageBytes(output, came)
            came = output
        return
    for layers in cut:
        with torch.no_grad():
            x = model.build(layers, dtype, "meta", None)(x)
        yield StageBytes(sum(tensor.nbytes for tensor in tensors_of(x)), came)
        came = sum(tensor.nbytes for tensor in tensors_of(x) if differentiable(tensor))


def _team_stages(
    model: TeamModel,
    cut: Sequence[range],
    example: Example,
    dtype: torch.dtype,
    *,
    member: int,
    held: Container[int],
    recompute: bool,
) -> Iterator[StageBytes]:
    """What a member sends for each stage; what it gathers for a step serves all stages that it holds."""
    (inputs,), (targets,) = map(tensors_of, example)
    x, came, gathered = _piece(model, inputs, member), 0, dict[str, torch.Tensor]()
    for stage, layers in enumerate(cut):
        last, results = model.layers - 1 in layers, list[Value]()
        module, lie = model.of_member(member).build(layers, dtype, "meta", None), model.parameters()
        pieces = {name: each.view(lie[name].shape(member)) for name, each in module.named_parameters()}
        pieces |= dict(module.named_buffers())
        work = partial(
            _recorded,
            model=model,
            layers=layers,
            x=x,
            targets=_piece(model, targets, member) if last else None,
            pieces=pieces,
            results=results,
        )
        shared = gathered if stage in held else {}
        first, found = (record(member, work, not recompute, gathered=shared) for _ in range(2))
        once, output = first.forward.nbytes - found.forward.nbytes, results[-1]
        moved = (1 + recompute) * found.forward.nbytes + found.backward.nbytes
        if last:
            told = path(output.shards, Shards(output.shards.mesh, output.shards.lengths, "")).elements(member)
            yield StageBytes(0, came, moved + told * output.array.itemsize, once)
        else:
            yield StageBytes(output.array.nbytes, came, moved, once)
        came, x = output.array.nbytes, Value(piece(member, output.shards, dtype, trained=False), output.shards)


async def _recorded(
    tape: Tape,
    *,
    model: TeamModel,
    layers: range,
    x: Value,
    targets: Value | None,
    pieces: Mapping[str, torch.Tensor],
    results: list[Value],
) -> Value:
    output = await model.part(tape, layers, x, pieces, KeyedRandom(0, 0, 0))  # in training, not in evaluation
    if targets is None:
        output = await tape.move(output, model.between(output.shards.lengths))
    else:
        output = await model.score(tape, output, targets)
    results.append(output)
    return output


def _piece(model: TeamModel, whole: torch.Tensor, member: int) -> Value:
    shards = model.ids(tuple(whole.shape))
    return Value(piece(member, shards, whole.dtype, trained=False), shards, False)
