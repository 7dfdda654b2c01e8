"""A run of teams saves pieces; any other number of ranks a worker, depth or width takes them up, and ends alike."""

import weakref

import pytest
import torch

from pipelined.errors import AgreedError, UsageError
from pipelined.state.checkpoints.trainer_state import SaveTarget, load, save
from pipelined.state.checkpoints.whole_state import gather_state, write_parameters
from pipelined.training.digests import model_digest
from tests.numerics.plain import OPTIMIZER, plain
from tests.numerics.teams import TeamCase
from tests.numerics.test_resumed_elsewhere import leg
from tests.numerics.trained import on_ranks

STEPS = 5
ALONE = TeamCase("zb_v", 4, 2, 2, tensor=1, dropout=0.2)
TEAMS = TeamCase("chimera", 2, 1, 4, layout="mixed", dropout=0.2)
THREES = TeamCase("gpipe", 1, 2, 2, tensor=3, layout="mixed", dropout=0.2)

STORED = TeamCase("gpipe", 1, 2, 2, tensor=2, layout="data+zero3", dropout=0.2)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("cases", [(ALONE, TEAMS, THREES), (THREES, TEAMS, ALONE)], ids=["1, 2, 3", "3, 2, 1"])
def test_teams_of_any_size_follow_one_another_as_one_process(cases, tmp_path):
    expected, losses = plain(ALONE, STEPS), []
    for case, steps in zip(cases, (range(2), range(2, 3), range(3, STEPS)), strict=True):
        losses += leg(case, OPTIMIZER, steps, tmp_path)[0][0]
    assert losses == pytest.approx(expected.losses, rel=1e-11)


def test_all_sizes_of_teams_have_the_bits_and_the_digest_of_what_was_saved(tmp_path):
    async def trained(trainer):
        await trainer.step(0)
        await save(trainer, 1, SaveTarget(tmp_path, keep=1))
        return await found(trainer)

    async def resumed(trainer):
        assert await load(trainer, tmp_path) == 1
        return await found(trainer)

    async def found(trainer):
        return await gather_state(trainer), await model_digest(trainer.context.actor.transport, trainer.local)

    (state, digest), *others = on_ranks(TEAMS.job(), trained)
    assert digest and others == [(None, "")] * 3
    assert set(state) == set(TEAMS.model.parameters())
    for case in (ALONE, STORED, THREES):
        (again, same), *_ = on_ranks(case.job(), resumed)
        assert same == digest
        assert all(torch.equal(again[name], value) for name, value in state.items())


@pytest.mark.parametrize("case", [TEAMS, STORED], ids=str)
def test_a_writer_has_one_whole_parameter_in_memory_at_a_time(case):
    async def written(trainer):
        every, before = {}, []

        def write(parameters):
            for name, tensor in parameters:
                assert all(each() is None for each in before), f"a parameter before {name} is still held"
                before.append(weakref.ref(tensor))
                every[name] = tensor.numpy().copy()
                del tensor

        await write_parameters(trainer, write)
        return every, await gather_state(trainer)

    (every, state), *others = on_ranks(case.job(), written)
    assert set(every) == set(state) == set(case.model.parameters())
    assert all((every[name] == value.numpy()).all() for name, value in state.items())
    assert others == [({}, None)] * (case.plan.world_size - 1)


def test_a_writer_that_fails_does_so_on_every_rank_and_the_job_goes_on():
    async def written(trainer):
        def write(parameters):
            next(parameters)
            raise UsageError("no room")

        with pytest.raises(AgreedError, match="no room"):
            await write_parameters(trainer, write)
        return (await trainer.step(0)).loss

    assert len(set(on_ranks(TEAMS.job(), written))) == 1
