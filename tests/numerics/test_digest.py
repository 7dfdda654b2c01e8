"""One digest of all parameters: the same for the same values in any arrangement, another for any other value."""

import pytest
import torch

from pipelined.training.digests import model_digest, parameters_digest
from tests.numerics.plain import Case
from tests.numerics.trained import on_every_rank


def digests(case, change=lambda trainer: None, dtype=torch.float32):
    async def digest(trainer, transport):
        change(trainer)
        return await model_digest(transport, trainer.local)

    return on_every_rank(case, digest, dtype)


@pytest.mark.parametrize(("schedule", "depth", "width"), [("one_f_one_b", 2, 1), ("chimera", 4, 1), ("gpipe", 3, 2)])
def test_equal_parameters_have_one_digest_in_every_arrangement(schedule, depth, width):
    model = Case("gpipe", 1, 1, 4).model
    whole = model.build(range(model.layers), torch.float32, "cpu", 3)
    (alone,) = digests(Case("gpipe", 1, 1, 4))
    assert alone == parameters_digest(whole.named_parameters())
    first, *others = digests(Case(schedule, depth, width, 4))
    assert (len(alone), first, set(others)) == (32, alone, {""})


def test_the_last_bit_of_one_value_and_the_dtype_change_the_digest():
    def nudge(trainer):
        for parameter in list(trainer.local.parameters.values())[-1:]:
            with torch.no_grad():
                last = parameter.view(-1)[-1:]
                last.copy_(torch.nextafter(last, torch.full_like(last, 9.0)))

    case = Case("gpipe", 1, 1, 4)
    found = {*digests(case), *digests(case, nudge), *digests(case, dtype=torch.float64)}
    assert len(found) == 3
