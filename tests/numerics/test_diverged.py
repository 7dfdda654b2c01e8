"""A step with numbers that are not finite ends training on every rank alike, and is neither applied nor reported.

Such a run once went on for ever, and replaced all its good checkpoints by ones of nan.
"""

import math

import pytest
import torch

from pipelined.errors import AgreedError
from tests.numerics.plain import Case
from tests.numerics.segments import segments
from tests.numerics.test_delays import together
from tests.numerics.trained import on_every_rank

TOLD = r"step {} \(counted from 0\) is not finite \(loss: nan, gradient norm: nan\): training has diverged; {}lower the"
LATER = "stages were updated meanwhile, so load a checkpoint or begin anew; "


def spoil(trainer):
    """Put an infinity where the last stage's parameters lie."""
    for name, parameter in trainer.local.parameters.items():
        if "ln_f" in name:
            parameter.data.fill_(math.inf)


@pytest.mark.parametrize(
    "case", [Case("one_f_one_b", 2, 1, 2), Case("chimera", 2, 2, 2)], ids=lambda case: case.schedule
)
def test_a_step_that_diverged_changes_no_parameter_on_any_rank(case):
    async def two_steps(trainer, transport):
        await trainer.step(0)
        spoil(trainer)
        before = {name: value.detach().clone() for name, value in trainer.local.parameters.items()}
        with pytest.raises(AgreedError, match=TOLD.format(1, "")):
            await trainer.step(1)
        return all(torch.equal(before[name], value) for name, value in trainer.local.parameters.items())

    assert all(on_every_rank(case, two_steps))


@pytest.mark.parametrize(("schedule", "step"), [("pipedream", 1), ("pipedream_2bw", 2)])
def test_without_a_flush_all_ranks_end_after_the_same_step(schedule, step):
    """Of double-buffered weights those spoilt are used a step later. Ranks once ended one by one, amid the pipe."""
    told = []

    async def until_it_diverges(trainer):
        await segments(range(1))(trainer)
        spoil(trainer)
        with pytest.raises(AgreedError, match=TOLD.format(step, LATER)):
            await trainer.train(range(1, 9), lambda: False, told.append)
        return []

    together(Case(schedule, 2, 1, 2), until_it_diverges)
    assert [report.step for report in told] == ([1] * 2 if step == 2 else [])
