"""A worker of several ranks that split every tensor: the losses, norms and parameters of the plain loop in float64."""

import asyncio
from dataclasses import dataclass, replace

import pytest
import torch

from apps.lm.models.gpt2 import GPT2
from apps.lm.sharded.gpt2 import ShardedGPT2
from apps.lm.sharded.layouts import factors_of
from pipelined.errors import UsageError
from pipelined.training.evaluate import evaluate, sample
from tests.numerics.plain import SEQUENCE, Case, Feed, Outcome, assert_same, pipelined, plain
from tests.numerics.trained import on_ranks
from tests.unit.pipelined.sharding.operators.ranks import together
from transports import new_event_loop
from transports.local import world


@dataclass(frozen=True)
class TeamCase(Case):
    tensor: int = 2
    layout: str = "megatron"

    @property
    def plan(self):
        return replace(super().plan, tensor=self.tensor)

    @property
    def model(self):
        return ShardedGPT2(super().model.config, factors_of(self.layout, self.tensor))


CASES = [
    TeamCase("one_f_one_b", 1, 1, 2, layers=2, dropout=0.2),
    TeamCase("gpipe", 1, 2, 2, layers=2, layout="data"),
    TeamCase("zb_h1", 1, 1, 2, layers=2, layout="data", recompute=True, dropout=0.2),
    TeamCase(
        "gpipe", 1, 1, 1, layers=2, tied=False, layout="c_attn=1.1.2,attn.c_proj=2.1.1,c_fc=1.2.1,mlp.c_proj=1.1.2"
    ),
    TeamCase(
        "gpipe",
        1,
        2,
        1,
        layers=1,
        tensor=4,
        layout="c_attn=2.2.1,attn.c_proj=2.1.2,c_fc=1.2.2,mlp.c_proj=1.1.4,wte=2.2.1",
    ),
]


def on_every_rank(case, work):
    """What a coroutine of each rank's transport returns."""

    async def everyone():
        return await asyncio.gather(*map(work, world(case.plan.world_size)))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(everyone())


def whole_of(case, outcomes, name):
    """A parameter of the first group, from its members' pieces."""
    shards = case.model.parameters()[name]
    pieces = [outcomes[rank].parameters[name].view(shards.shape(rank)) for rank in range(case.tensor)]
    return together(shards, pieces)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_team_trains_as_the_plain_loop(case):
    expected, outcomes = plain(case), on_every_rank(case, lambda end: pipelined(case, end))
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(expected.losses, rel=1e-12)
        assert (outcome.losses, outcome.norms) == (outcomes[0].losses, outcomes[0].norms)
    for first, other in zip(outcomes, outcomes[case.tensor :], strict=False):
        assert all(torch.equal(first.parameters[name], value) for name, value in other.parameters.items())
    wholes = {n: whole_of(case, outcomes, n).view(each.shape) for n, each in expected.parameters.items()}
    keys = {n: wholes.pop(n) for n in list(wholes) if n.endswith("c_attn.bias")}
    assert_same(expected, Outcome(outcomes[0].losses, outcomes[0].norms, wholes))
    assert_same(expected, Outcome(outcomes[0].losses, outcomes[0].norms, keys), tolerance=1e-9)


def test_a_team_evaluates_and_samples_as_one_rank():
    team = CASES[-1]
    alone = Case("gpipe", 1, 1, 1, layers=1)
    windows = [(Feed().inputs(9, number), Feed().targets(9, number)) for number in range(3)]

    async def work(trainer):
        context = trainer.context
        loss = await evaluate(context, trainer.model, windows, trainer.world, tag=1)
        return loss, await sample(context, [3, 1], 4, SEQUENCE, lambda logits, number: int(logits.argmax()))

    ((expected, tokens),) = on_ranks(alone.job(), work)
    found = on_ranks(team.job(), work)
    assert [loss for loss, _ in found] == pytest.approx([expected] * 8, rel=1e-12)
    assert [each for _, each in found] == [tokens] * 4 + [[]] * 4


@pytest.mark.parametrize("numerics", [{"autocast": True}, {"exact_sums": True}], ids=str)
def test_what_a_team_cannot_compute_is_refused(numerics):
    job = TeamCase("gpipe", 1, 1, 1, layers=1).job(torch.float32, **numerics)
    with pytest.raises(UsageError, match="a team has neither autocast nor exact sums yet"):
        on_ranks(job, lambda trainer: trainer.step(0))


def test_a_model_that_does_not_say_how_it_is_split_is_refused():
    case = TeamCase("gpipe", 1, 1, 1, layers=1)
    job = replace(case.job(), model=GPT2(case.model.config))
    with pytest.raises(UsageError, match="a GPT2 does not say how ranks split it"):
        on_ranks(job, lambda trainer: trainer.step(0))
