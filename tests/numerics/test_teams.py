"""Workers of several ranks that split every tensor: losses, gradients and parameters as in the plain loop, float64."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from apps.common.lm.models.gpt2 import GPT2
from pipelined.errors import UsageError
from pipelined.training.evaluate import evaluate, sample
from pipelined.training.stages.key_values import KeyValueCache
from tests.conformance.worlds import local_world
from tests.numerics.plain import SEQUENCE, Case, Feed, pipelined, plain
from tests.numerics.teams import EACH, TeamCase, on_every_rank, parametrised, whole_of
from tests.numerics.trained import on_ranks

PROMPTS = [[3, 1], [5], [2, 7, 1, 4, 4, 0, 9]]


def digits(logits, number):
    """A token that other digits of a logit would change."""
    return int(float(logits[number]) * 1e9) % len(logits)


def worst(found, expected):
    """The largest difference, as a share of the largest element."""
    return float((found.reshape(expected.shape) - expected).abs().max() / expected.abs().max())


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("case", parametrised())
def test_teams_train_as_the_plain_loop(case):
    require_plain(case, 5)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    "nodes", [(0, 0, 0, 0, 4, 4, 4, 4), (0, 0, 0, 3, 3, 3, 3, 3), (0, 1, 0, 1, 0, 1, 0, 1)], ids=str
)
@pytest.mark.parametrize(
    "case",
    [
        TeamCase("chimera", 2, 2, 2, layers=1, layout="mixed+zero2"),
        TeamCase("one_f_one_b", 1, 2, 2, layers=1, tensor=4, layout=EACH),
    ],
    ids=str,
)
def test_teams_within_nodes_and_across_them_do_the_same_through_shared_memory(case, nodes):
    require_plain(case, 3, local_world(8, nodes, shared_memory=True))


def require_plain(case, steps, ends=()):
    """Losses, norms, the first gradients and the parameters of every rank are those of the plain loop."""
    expected, outcomes = plain(case, steps), on_every_rank(case, lambda end: pipelined(case, end, steps), ends)
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(expected.losses, rel=1e-12)
        assert outcome.norms == pytest.approx(expected.norms, rel=1e-11)
        assert (outcome.losses, outcome.norms) == (outcomes[0].losses, outcomes[0].norms)
    parameters, gradients = [each.parameters for each in outcomes], [each.gradients for each in outcomes]
    for name, value in expected.parameters.items():
        assert worst(whole_of(case, gradients, name), expected.gradients[name]) < 1e-12, name
        assert worst(whole_of(case, parameters, name), value) < (1e-9 if "c_attn.bias" in name else 1e-10), name


@pytest.mark.parametrize("case", [TeamCase("chimera", 2, 2, 2, layers=1)], ids=str)
def test_replicas_of_a_piece_have_the_same_bits(case):
    outcomes, plan = on_every_rank(case, lambda end: pipelined(case, end, steps=2)), case.plan
    for rank, outcome in enumerate(outcomes):
        first = outcomes[plan.member(rank)].parameters
        assert all(torch.equal(first[name], value) for name, value in outcome.parameters.items())


@pytest.mark.parametrize(
    "team",
    [
        TeamCase("gpipe", 1, 2, 1, layers=1, tensor=4, layout="mixed"),
        TeamCase("gems", 3, 1, 2, layers=1),
    ],
    ids=str,
)
def test_teams_evaluate_and_sample_as_one_rank(team, monkeypatch):
    """A team computes each token once up to the context length, and all prompts in one batch."""
    alone = replace(team.job(), plan=Case("gpipe", 1, 1, 1).plan, model=GPT2(team.model.config))
    windows = [(Feed().inputs(9, number), Feed().targets(9, number)) for number in range(5)]

    async def work(trainer, batches=(PROMPTS,), cached=True):
        context = trainer.context
        loss = await evaluate(context, trainer.model, windows, trainer.world, tag=1)
        return loss, [await sample(context, each, 4, SEQUENCE, digits, cached=cached) for each in batches]

    ((expected, one_by_one),) = on_ranks(alone, partial(work, batches=[[each] for each in PROMPTS], cached=False))
    computed, extend = list[int](), KeyValueCache.extend
    monkeypatch.setattr(
        KeyValueCache, "extend", lambda past, key, value: computed.append(key.shape[2]) or extend(past, key, value)
    )
    found = on_ranks(team.job(), work)
    assert [loss for loss, _ in found] == pytest.approx([expected] * len(found), rel=1e-12)
    assert [each for _, (each,) in found if each] == [[one for (one,) in one_by_one]] * team.tensor
    assert sorted(computed) == [1] * 6 * team.tensor + [SEQUENCE] * 4 * team.tensor


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_team_in_half_precision_trains_as_one_rank_in_it(dtype):
    team = TeamCase("zb_h1", 2, 1, 2, layout="mixed")
    alone = replace(
        team.job(torch.float32, autocast=dtype),
        plan=replace(team.plan, tensor=1),
        model=GPT2(team.model.config),
    )

    async def losses(trainer):
        return [(await trainer.step(step)).loss for step in range(3)]

    expected, exact = on_ranks(alone, losses)[0], on_ranks(team.job(torch.float32), losses)[0]
    found = on_ranks(team.job(torch.float32, autocast=dtype), losses)[0]
    assert found == pytest.approx(expected, rel=2e-3)
    assert found != exact


def test_exact_sums_of_a_team_are_refused():
    job = TeamCase("gpipe", 1, 1, 1, layers=1).job(torch.float32, exact_sums=True)
    with pytest.raises(UsageError, match=r"members of a team .*\(tensor: 2\); exact sums need `tensor=1`"):
        on_ranks(job, lambda trainer: trainer.step(0))


def test_a_model_that_does_not_say_how_it_is_split_is_refused():
    case = TeamCase("gpipe", 1, 1, 1, layers=1)
    job = replace(case.job(), model=GPT2(case.model.config))
    with pytest.raises(UsageError, match="a GPT2 does not say how ranks split it"):
        on_ranks(job, lambda trainer: trainer.step(0))
