"""The holders of a parameter divide its update: the same numbers, a share of the optimizer's state, the same bytes."""

from functools import partial

import numpy as np
import pytest
import torch

import pipelined as pp
from pipelined.state.checkpoints.trainer_state import SaveTarget, load, save
from pipelined.training.digests import model_digest
from tests.numerics.plain import Case, plain
from tests.numerics.teams import TeamCase
from tests.numerics.test_front_door import adam, trained
from tests.numerics.trained import on_every_rank

TWO_HOLDERS = [
    Case("gpipe", 1, 2, 2, layers=1, dropout=0.1),
    Case("chimera", 2, 1, 2, layers=1, recompute=True),
    TeamCase("gpipe", 1, 1, 2, layers=1, layout="data", dropout=0.2),
    TeamCase("zb_h1", 2, 2, 2, layers=1, layout="megatron", tied=False),
    pytest.param(Case("chimera", 4, 1, 4, tied=False), marks=pytest.mark.full),
]
"""Every parameter has two holders; a sum of two numbers has one order."""
MORE_HOLDERS = [
    Case("gpipe", 1, 3, 2, layers=1),
    Case("chimera", 2, 2, 2, layers=1),
    TeamCase("gpipe", 1, 2, 1, layers=1, tensor=4, layout="mixed", dropout=0.2),
    pytest.param(TeamCase("one_f_one_b", 2, 2, 1, layers=1, layout="data"), marks=pytest.mark.full),
    pytest.param(TeamCase("zb_v", 4, 1, 2, tensor=3, layout="mixed", recompute=True), marks=pytest.mark.full),
]


async def losses_and_digest(trainer, transport):
    reports = [await trainer.step(step) for step in range(3)]
    return [(r.loss, np.float32(r.grad_norm)) for r in reports], await model_digest(transport, trainer.local)


async def losses_norms_and_digest(trainer, transport):
    reports = [await trainer.step(step) for step in range(3)]
    return [(r.loss, r.grad_norm) for r in reports], await model_digest(transport, trainer.local)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("case", TWO_HOLDERS, ids=str)
def test_two_holders_train_to_the_bits_of_undivided_updates(case):
    expected = on_every_rank(case, losses_and_digest, all_reduce="ring")
    assert on_every_rank(case, losses_and_digest, all_reduce="ring", shard_optimizer=True) == expected


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("case", MORE_HOLDERS, ids=str)
def test_more_holders_train_as_the_plain_loop(case):
    expected = plain(case, steps=3)

    async def losses(trainer, transport):
        reports = [await trainer.step(step) for step in range(3)]
        return [r.loss for r in reports], [r.grad_norm for r in reports]

    for found, norms in on_every_rank(case, losses, torch.float64, shard_optimizer=True):
        assert found == pytest.approx(expected.losses, rel=1e-12)
        assert norms == pytest.approx(expected.norms, rel=1e-10)


@pytest.mark.parametrize("algorithm", ["auto", "rabenseifner:512,ring"])
def test_exact_sums_give_the_same_bits_with_divided_updates(algorithm):
    numerics = {"exact_sums": True, "all_reduce": algorithm}
    case = Case("chimera", 2, 2, 2)
    expected = on_every_rank(Case("gpipe", 1, 1, 4), losses_norms_and_digest, exact_sums=True)[0]
    found, digest = on_every_rank(case, losses_norms_and_digest, shard_optimizer=True, **numerics)[0]
    assert digest == expected[1]
    assert found == expected[0]  # the norm, too: it scales the update where it is larger than `clip`


@pytest.mark.parametrize("case", [*TWO_HOLDERS[:3], *MORE_HOLDERS[:3]], ids=str)
def test_a_rank_keeps_its_share_of_the_moments_and_a_step_sends_what_the_closed_form_says(case):
    """Each element's moments lie on one rank; R holders send 2 (R-1)/R of what they hold, all together 2 (R-1)."""

    async def counted(trainer, transport):
        planned = await trainer.planned_sum_bytes()
        await trainer.step(0)
        kept = sum(state["exp_avg"].numel() for state in trainer.optimizer.state.values())
        return kept, planned, sum(parameter.numel() for parameter in trainer.local.parameters.values())

    found = on_every_rank(case, counted, torch.float64, all_reduce="ring", shard_optimizer=True)
    module = case.model.build(range(case.model.layers), torch.float64, "meta", None)
    whole = sum(parameter.numel() for parameter in module.parameters())
    assert sum(kept for kept, *_ in found) == whole
    assert sum(planned for _, planned, _ in found) == 2 * 8 * (sum(held for *_, held in found) - whole)
    if case.depth == 1:
        assert max(kept for kept, *_ in found) <= whole / case.plan.world_size + 64, "but for a row"


@pytest.mark.parametrize(
    ("divided", "then"),
    [
        (Case("chimera", 2, 1, 2), Case("gpipe", 1, 3, 1)),
        (TeamCase("gpipe", 1, 2, 1, layers=1, layout="mixed"), TeamCase("gpipe", 2, 1, 2, layers=1)),
    ],
    ids=str,
)
def test_checkpoints_of_divided_updates_load_without_and_the_other_way(divided, then, tmp_path):
    """What a checkpoint holds does not depend on the division; a run that goes on has the bits of one that went on."""

    async def begin(trainer, transport):
        await trainer.step(0)
        await save(trainer, 1, SaveTarget(tmp_path / "divided", keep=1))

    async def through(trainer, transport):
        await load(trainer, tmp_path / "divided")
        await save(trainer, 1, SaveTarget(tmp_path / "whole", keep=1))

    def going_on(where):
        async def work(trainer, transport):
            assert await load(trainer, tmp_path / where) == 1
            return (await trainer.step(1)).loss, await model_digest(transport, trainer.local)

        return work

    on_every_rank(divided, begin, shard_optimizer=True)
    on_every_rank(then, through)
    ends = [
        on_every_rank(divided, going_on(where), shard_optimizer=True, all_reduce="ring")
        for where in ("divided", "whole")
    ]
    assert ends[0] == ends[1]
    assert on_every_rank(divided, going_on("whole"), all_reduce="ring")[0][0] == ends[0][0][0]


@pytest.mark.parametrize("optimizer", [partial(torch.optim.SGD, lr=0.1, momentum=0.9), adam], ids=["sgd", "adam"])
def test_a_row_of_a_user_s_layers_has_the_bits_of_undivided_updates_with_an_optimizer_of_the_user_s(optimizer):
    arguments = {"width": 2, "microbatches": 2, "dtype": torch.float32, "optimizer": optimizer}
    whole, divided = (trained(**arguments, shard_optimizer=each) for each in (False, True))
    assert divided.losses == whole.losses
    state = whole.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in divided.state_dict().items())


@pytest.mark.parametrize("make", [torch.optim.Adafactor, torch.optim.Muon])
def test_an_optimizer_of_whole_parameters_is_refused(make):
    layers = [lambda: torch.nn.Linear(4, 4, bias=False), lambda: torch.nn.Linear(4, 4, bias=False)]
    batch = torch.ones(4, 4), torch.ones(4, 4)
    given = {"loss": torch.nn.functional.mse_loss, "optimizer": lambda ps: make(ps, lr=0.1), "transport": "local"}
    with pytest.raises(pp.UsageError, match=f"{make.__name__} updates a parameter as a whole"):
        pp.train(layers, [batch], depth=1, width=2, microbatches=1, shard_optimizer=True, **given)
    assert pp.train(layers, [batch], depth=1, width=2, microbatches=1, **given).losses
