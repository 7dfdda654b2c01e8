"""SWARM's language model through the schedules of a pipeline: the numbers of a plain loop, dropout included."""

import pytest
import torch

from apps.common.lm.models.rotary import RotaryLM
from apps.common.lm.models.rotary_presets import RotaryConfig
from pipelined.random.keyed_random import keyed_generator
from tests.numerics.own_model import on_ranks, plain, plan, steps

STEPS, SEQUENCE = 3, 5
MODEL = RotaryLM(RotaryConfig(layers=4, d_model=8, heads=2, vocab=32, positions=8, dropout=0.2))


class Tokens:
    def inputs(self, step, microbatch):
        return torch.randint(32, (4, SEQUENCE), generator=keyed_generator(step, microbatch))

    def targets(self, step, microbatch):
        return self.inputs(step, microbatch).roll(-1, 1)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    ("schedule", "depth", "width"),
    [("gpipe", 2, 2), ("one_f_one_b", 4, 1), ("chimera", 4, 2), ("zb_h1", 2, 1), ("chimera_w", 4, 1)],
)
def test_the_swarms_model_trains_in_every_schedule_as_in_a_plain_loop(schedule, depth, width):
    losses, tensors = plain(MODEL, 4 * width, STEPS, Tokens())
    for told, held in on_ranks(MODEL, plan(schedule, depth, width), steps(STEPS), feed=Tokens()):
        assert told == pytest.approx(losses, rel=1e-12, abs=0)
        for name, value in held.items():
            torch.testing.assert_close(value, tensors[name].detach(), rtol=1e-11, atol=1e-13)
