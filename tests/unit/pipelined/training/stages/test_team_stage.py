"""The stage of a team: what its members send in each pass, and what they refuse."""

import pytest
import torch

from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import Shards, path_between
from pipelined.sharding.operators.stage_record import piece, record
from pipelined.sharding.operators.verbs import ShardedWeight, Value
from pipelined.training.segments.computation import StageFailed
from tests.numerics.plain import SEQUENCE, Feed
from tests.numerics.teams import TeamCase
from tests.numerics.trained import on_ranks
from transports import Block, Message, WireError

CASE = TeamCase("gpipe", 2, 1, 1, tensor=4, layout="mixed")
ROWS = 2


def predicted(case, stage, member):
    """The bytes that a member sends in the forward and in the backward of a stage, from the meta device."""
    model = case.model
    pieces = {name: piece(member, shards, torch.float64) for name, shards in model.parameters().items()}

    async def passes(tape):
        shards = model.stream((ROWS, SEQUENCE)) if stage.index else model.input_shards((ROWS, SEQUENCE))
        dtype = torch.float64 if stage.index else torch.int64
        x = torch.empty(shards.shape(member), dtype=dtype, device="meta")
        output = await model.run_layers(tape, stage.layers, Value(x, shards, bool(stage.index)), pieces)
        if not stage.is_last:
            return output
        id_shards = model.input_shards((ROWS, SEQUENCE))
        targets = Value(torch.zeros(id_shards.shape(member), dtype=torch.int64, device="meta"), id_shards, False)
        return await model.score(tape, output, targets)

    stage_record = record(member, passes)
    loss = Shards(model.operators["wte"].mesh, (), "P:rows")
    reported = 8 * path_between(loss, Shards(loss.mesh, (), "")).elements(member) if stage.is_last else 0
    return stage_record.forward.nbytes + reported, stage_record.backward.nbytes


async def passed(trainer):
    """Run one microbatch through both stages; the bytes that this rank sent in each pass, and those between stages."""
    context, bytes_sent = trainer.context, []
    end, random, key = context.actor.transport, KeyedRandom(3, 0, 0), (0, 0)
    ((index, stage),) = context.stages.items()
    peer = context.holder(0, 1 - index)
    x = (await end.receive(peer, ("x",))) if index else Feed().inputs(0, 0)
    targets = Feed().targets(0, 0) if index else None
    before = end.traffic.bytes_sent
    output = await stage.forward(key, x, random, targets)
    bytes_sent.append(end.traffic.bytes_sent - before)
    if not index:
        await end.send(peer, ("x",), *output.tensors, note=output.note)
    gradient = None if index else await end.receive(peer, ("gradient",))
    before = end.traffic.bytes_sent
    back = await stage.backward_input(key, gradient, 1.0, random, targets)
    bytes_sent.append(end.traffic.bytes_sent - before)
    await stage.backward_weight(key)
    assert end.traffic.bytes_sent - before == bytes_sent[1]
    if index:
        await end.send(peer, ("gradient",), *back.tensors)
    between = (back if index else output).tensors[0].nbytes
    return tuple(bytes_sent), predicted(CASE, stage, context.member), between


def test_every_member_sends_what_the_record_of_its_stage_says_and_its_share_of_the_stream():
    for bytes_sent, expected, between in on_ranks(CASE.job(), passed):
        assert bytes_sent == expected
        assert between == ROWS * SEQUENCE * 16 * 8 / CASE.tensor


def test_every_pass_and_every_sum_of_a_team_is_timed():
    async def work(trainer):
        await trainer.step(0)
        (stage,) = trainer.context.stages.values()
        return [stage.moves, *trainer.sums.move_timers]

    for stage, update in on_ranks(TeamCase("zb_h1", 1, 1, 2, layers=1, tensor=4, layout="mixed").job(), work):
        assert set(stage.seconds) == {"forward", "backward"} and set(update.seconds) == {"update"}
        assert (stage.stages, update.stages) == ((0,), (0,))
        assert all(seconds > 0 for seconds in [*stage.seconds.values(), *update.seconds.values()])


@pytest.mark.parametrize(
    ("note", "shape", "message"),
    [
        (
            ["piece", 2, 6, 16],
            (1, 6, 16),
            r"a piece of another shape \(member: \d, due: \(1, 6, 8\), came: \(1, 6, 16\)\)",
        ),
        (None, (1, 6, 8), "a message that is no piece of a stream"),
        (["piece", 2, "6"], (1, 6, 8), "a message that is no piece of a stream"),
    ],
)
def test_a_message_with_another_piece_is_refused(note, shape, message):
    async def work(trainer):
        (stage,) = trainer.context.stages.values()
        block = Block.of(torch.zeros(shape, dtype=torch.float64))
        with pytest.raises(WireError, match=message):
            await stage.evaluate(Message(0, ("x",), (block,), note))

    on_ranks(CASE.job(), work)


def test_an_error_in_a_pass_names_the_shard():
    async def work(trainer):
        (stage,) = trainer.context.stages.values()
        stage.forward = lambda *given: 1 / 0
        where = rf"of microbatch 0 through stage 0 \(pipe 0, member {trainer.context.member} of 2\) failed"
        with pytest.raises(StageFailed, match=where):
            await trainer.step(0)

    on_ranks(TeamCase("gpipe", 1, 1, 1, layers=1).job(), work)


def test_a_recomputed_forward_frees_the_weights_that_it_gathers():
    """The tape keeps them until the backward of the whole stage, in which each is gathered again."""

    async def work(trainer):
        (stage,) = trainer.context.stages.values()
        revive, storage_bytes = stage._revive, []

        async def counted(*arguments):
            tape, x, output = await revive(*arguments)
            gathered = [value for value in tape.values() if value.weight and not isinstance(value, ShardedWeight)]
            storage_bytes.append([value.array.untyped_storage().nbytes() for value in gathered])
            return tape, x, output

        stage._revive = counted
        await trainer.step(0)
        return storage_bytes

    for storage_bytes in on_ranks(
        TeamCase("gpipe", 1, 1, 1, layers=1, layout="data+zero3", recompute=True).job(), work
    ):
        assert all(value and not sum(value) for value in storage_bytes)
