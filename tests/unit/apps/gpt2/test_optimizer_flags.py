"""The flags of the optimizer: what AdamW and its learning rate become in both kinds of programs of pipelines."""

from math import cos, inf, nan, pi

import pytest
import torch

from apps.common.rows.rank import lr_scheduler
from apps.gpt2.config import GPT2Flags, parse
from apps.gpt2.job import resolve
from apps.gpt2.swarm.job import resolve_swarm
from apps.gpt2.train import optimizer_of
from apps.vgg.config import VGGFlags as VGG
from pipelined.errors import UsageError

FLAGS = "--lr 0.5 --min-lr 0.1 --lr-schedule wsd --steps 30 --warmup 5 --beta1 0.8 --beta2 0.9 --eps 1e-3".split()
EXPECTED = {0: 0.1, 4: 0.5, 25: 0.5, 28: 0.26, 30: 0.1}
"""The rate of these flags by step: 5 steps up, 20 at the top, 5 down to --min-lr in a straight line."""


def test_the_optimizer_is_as_the_flags_say():
    found = optimizer_of(resolve(parse(FLAGS), 1))
    assert {step: found.rate(step) for step in EXPECTED} == pytest.approx(EXPECTED)
    group = found.build({"a": torch.nn.Parameter(torch.ones(2, 2))}).param_groups[0]
    assert (group["betas"], group["eps"]) == ((0.8, 0.9), 1e-3)


def test_the_default_is_half_a_cosine_to_a_tenth():
    found = optimizer_of(resolve(GPT2Flags(steps=40, warmup=0, lr=2.0), 1))
    assert found.rate(10) == pytest.approx(0.2 + 0.9 * (1 + cos(pi / 4)))
    assert (found.betas, found.eps) == ((0.9, 0.95), 1e-8)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (VGG(lr=0.5, min_lr=0.1, lr_schedule="wsd", steps=30, warmup=5), {0: 0.1, 4: 0.5, 25: 0.5, 28: 0.26, 30: 0.1}),
        (VGG(lr=0.5, lr_schedule="constant", steps=30, warmup=5), {5: 0.5, 30: 0.5}),
        (VGG(lr=0.5, min_lr=0.1, steps=30, warmup=10), {10: 0.5, 20: 0.3, 30: 0.1}),
        (VGG(lr=0.5, steps=30, warmup=10), {20: 0.275, 30: 0.05}),
    ],
)
def test_a_row_of_layers_has_the_same_rates(flags, expected):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=flags.lr)
    schedule, found = lr_scheduler(flags, optimizer), {}
    for step in range(31):
        found[step] = schedule.get_last_lr()[0]
        optimizer.step()
        schedule.step()
    assert {step: found[step] for step in expected} == pytest.approx(expected)
    names = ("lr", "steps", "warmup", "min_lr", "lr_schedule")
    same = GPT2Flags(**{name: getattr(flags, name) for name in names})
    assert found == pytest.approx({step: optimizer_of(resolve(same, 1)).rate(step) for step in found}, rel=1e-15)


@pytest.mark.parametrize(("name", "value"), [("beta1", 1), ("beta2", -0.1), ("min_lr", nan), ("eps", inf)])
def test_a_number_out_of_range_is_refused(name, value):
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} must be"):
        GPT2Flags(**{name: value})


def test_a_swarm_that_would_ignore_the_schedule_refuses_it():
    with pytest.raises(UsageError, match="--lr-schedule wsd means nothing to a swarm"):
        resolve_swarm(parse(["--schedule", "swarm", "--lr-schedule", "wsd"]), 4)
