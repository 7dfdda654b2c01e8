"""The tape walks back what it has read, on all ranks alike."""

import pytest
import torch

from pipelined.sharding import Mesh, Shards
from pipelined.sharding.operators.verbs import Value
from tests.unit.pipelined.sharding.operators.ranks import normal, tapes

MESH = Mesh("a=2")
SPLIT, WHOLE = Shards(MESH, (4,), "S0:a"), Shards(MESH, (4,), "B")


def one():
    return Value(normal(2), SPLIT)


async def test_a_value_that_is_used_twice_has_the_sum_of_both_gradients():
    async def work(tape):
        x = one()
        y = await tape.compute("square", torch.square, x, result=SPLIT)
        z = await tape.compute("add", torch.add, x, y, result=SPLIT)
        await tape.backward(z, torch.ones(2))
        assert torch.equal(x.gradient, 1 + 2 * x.array)

    await tapes(2, work)


async def test_a_rank_without_a_part_in_the_result_still_takes_part_in_the_gradients_move():
    """Else the other rank would wait for it for ever."""

    async def work(tape):
        x = one()
        gathered = await tape.move(x, WHOLE)
        ignores = tape.rank == 1
        z = await tape.compute("some", lambda x: torch.zeros(4) if ignores else x * 3, gathered, result=WHOLE)
        await tape.backward(z, torch.ones(4, dtype=torch.float64))
        assert torch.equal(x.gradient, torch.full((2,), 3.0, dtype=torch.float64))

    await tapes(2, work)


async def test_a_constant_and_what_is_not_trained_keep_nothing():
    async def work(tape):
        x = one()
        y = await tape.compute("square", torch.square, x, result=SPLIT, constant=True)
        z = await tape.compute("cube", lambda y: y**3, y, result=SPLIT)
        assert not y.trained and not z.trained and not list(tape.values())

    await tapes(2, work)


async def test_a_result_of_another_shape_is_refused_with_its_rank():
    async def work(tape):
        if tape.rank == 1:
            with pytest.raises(ValueError, match=r"sum gave another shape \(rank: 1, got: \(\), layout's: \(2,\)\)"):
                await tape.compute("sum", torch.sum, one(), result=SPLIT)

    await tapes(2, work)


@pytest.mark.parametrize("use", ["a second computation", "a move"])
async def test_a_tensor_that_is_freed_after_its_use_is_used_once(use):
    async def work(tape):
        gathered = await tape.move(one(), WHOLE, again=True)
        await tape.compute("square", torch.square, gathered, result=WHOLE)
        fact = rf"{use} takes a tensor that was freed after its first use \(rank: {tape.rank}\)"
        with pytest.raises(RuntimeError, match=fact):
            if use == "a move":
                await tape.move(gathered, SPLIT)
            else:
                await tape.compute(use, torch.square, gathered, result=WHOLE)

    await tapes(2, work)
