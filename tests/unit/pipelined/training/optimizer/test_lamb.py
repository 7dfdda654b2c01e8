"""LAMB as torch's interface has it: the exact rule, and a state that is saved, zeros before the first update."""

import pytest
import torch

from pipelined.training.optimizer import OptimizerConfig, update
from pipelined.training.optimizer.exact import LambConfig, LearnedTensor, lamb
from pipelined.training.optimizer.state import OptimizerState
from tests.unit.pipelined.training.optimizer.test_state import OPTIMIZER, parameters

SETTINGS = LambConfig(**vars(OPTIMIZER))


def test_it_updates_as_the_exact_rule_at_the_rates_of_its_steps():
    named = parameters()
    optimizer = SETTINGS.build(named)
    plain = {
        name: LearnedTensor(p.detach().clone(), torch.zeros(p.shape), torch.zeros(p.shape)) for name, p in named.items()
    }
    for step in range(3):
        update(optimizer, SETTINGS.rate(step), 1.0)
        for name, learned in plain.items():
            lamb(learned, named[name].grad, step + 1, SETTINGS.rate(step), SETTINGS)
    assert all(torch.equal(named[name], learned.value) for name, learned in plain.items())
    adamw = parameters()
    update(OptimizerConfig(**vars(OPTIMIZER)).build(adamw), SETTINGS.rate(0), 1.0)
    assert not torch.equal(adamw["w"], named["w"])


def test_frozen_parameters_are_left():
    named = parameters()
    named["w"].requires_grad_(False)
    assert [p for group in SETTINGS.build(named).param_groups for p in group["params"]] == [named["b"]]


@pytest.mark.parametrize("updates", [0, 3])
def test_restored_state_goes_on_bit_for_bit(updates):
    """Before the first update its fields are those of later ones, so that stages are laid out alike."""
    first, second = parameters(), parameters()
    optimizer, restored = SETTINGS.build(first), SETTINGS.build(second)
    for step in range(updates):
        update(optimizer, SETTINGS.rate(step), 1.0)
    for name in first:
        saved = OptimizerState.of(optimizer).fields(first[name])
        assert {*saved} == {"value", "exp_avg", "exp_avg_sq"}
        OptimizerState.of(restored).restore(second[name], saved, updates)
        second[name].grad = first[name].grad.clone()
    update(optimizer, SETTINGS.rate(updates), 1.0)
    update(restored, SETTINGS.rate(updates), 1.0)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert OptimizerState.of(restored).updates == updates + 1
