"""The payload that a rank of a GPT-2's training sends in a step, worked out: messages, gradient sums, moves of a team.

The sum of the step's totals is not among it. With exact sums a step whose grids do not fit sends its part twice.
"""

import torch

from apps.gpt2.job import Job
from apps.gpt2.team_costs import sizes
from apps.lm.models.gpt2_presets import layer_costs
from apps.lm.sharded.gpt2 import ShardedGPT2
from pipelined.measurement.codec import ratio_of
from pipelined.programs.partition import partition
from pipelined.sharding import Shards
from pipelined.sharding.operators.record import piece, record
from pipelined.sharding.operators.tape import Tape, sum_path
from pipelined.sharding.operators.verbs import Value
from pipelined.sharding.path import path
from pipelined.simulation.traffic import message_bytes
from pipelined.training.trainer import RankTrainer


async def planned_bytes(job: Job, trainer: RankTrainer) -> int:
    """Bytes of this rank in a step; all ranks call this, before their first step.

    With a codec messages count as if they had random numbers.

    Args:
        trainer: of this rank; it prepares its first step here.
    Cost: the preparation of the first step; for a team the record of a microbatch, some ms a block.
    """
    plan, rank, dtype = job.plan, trainer.context.actor.rank, next(iter(trainer.local.parameters.values())).dtype
    carried = message_bytes(plan, sizes(job.model, plan, job.sequence, itemsize=dtype.itemsize))
    messages = sum(nbytes for (source, _), nbytes in carried.items() if source == rank)
    total = round(messages * ratio_of(job.config.compress)) + await trainer.planned_sum_bytes()
    if plan.tensor == 1:
        return total
    model, member, layout = ShardedGPT2(job.model, job.factors, job.config.state), plan.member(rank), plan.layout
    cut, lie = partition(layer_costs(job.model, job.sequence), plan.depth), model.parameters()
    lead, gathered = (plan.rows, job.sequence), dict[str, torch.Tensor]()
    recompute = job.config.recompute
    for pipe, stage in layout.held_by(plan.position(rank)[1]):
        once, each = moved_bytes(model, cut[stage], lead, dtype, member=member, recompute=recompute, gathered=gathered)
        total += once + len(layout.microbatches[pipe]) * each
    if trainer.local.divided:
        return total
    return total + dtype.itemsize * sum(sum_path(lie[name]).elements(member) for name in trainer.local.parameters)


def moved_bytes(
    model: ShardedGPT2,
    layers: range,
    lead: tuple[int, int],
    dtype: torch.dtype,
    *,
    member: int,
    recompute: bool,
    gathered: dict[str, torch.Tensor],
) -> tuple[int, int]:
    """What a member sends to its team for a stage, once a step and for each microbatch, by the record of what trains.

    Args:
        layers: of the stage.
        lead: sequences of the microbatch, tokens of each.
        recompute: whether the forward runs again before the backward.
        gathered: the weights that the rank's other stages have gathered for the step; those of this one are added.
    """
    pieces = {name: piece(member, each, dtype) for name, each in model.parameters().items()}
    ids = Value(piece(member, model.ids(lead), torch.int64, trained=False), model.ids(lead), False)
    stream = model.stream(lead)
    x = ids if 0 in layers else Value(piece(member, stream, dtype, trained=False), stream)
    is_last, loss = model.layers - 1 in layers, 0

    async def stage(tape: Tape) -> Value:
        output = await model.part(tape, layers, x, pieces)
        return await model.score(tape, output, ids) if is_last else output

    first = record(member, stage, again=not recompute, gathered=gathered)
    found = record(member, stage, again=not recompute, gathered=gathered)
    if is_last:
        mesh = model.ids(lead).mesh
        loss = dtype.itemsize * path(Shards(mesh, (), "P:rows"), Shards(mesh, (), "")).elements(member)
    once = first.forward.nbytes - found.forward.nbytes
    return once, (1 + recompute) * found.forward.nbytes + found.backward.nbytes + loss
