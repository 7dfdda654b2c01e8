"""The state of an optimizer survives being saved."""

import pytest
import torch
from torch import nn

from pipelined.training.optimizer import update
from pipelined.training.optimizer.state import OptimizerState
from tests.unit.pipelined.training.optimizer.test_config import OPTIMIZER, parameters


def test_restored_state_goes_on_bit_for_bit():
    first, second = parameters(), parameters()
    optimizer, restored = OPTIMIZER.build(first), OPTIMIZER.build(second)
    for step in range(3):
        update(optimizer, OPTIMIZER.rate(step), 0.5)
    for name in first:
        OptimizerState.of(restored).restore(second[name], OptimizerState.of(optimizer).fields(first[name]), 3)
        second[name].grad = first[name].grad.clone()
    update(optimizer, OPTIMIZER.rate(3), 1.0)
    update(restored, OPTIMIZER.rate(3), 1.0)
    assert all(torch.equal(first[name], second[name]) for name in first)


def momentum(device="cpu"):
    """A parameter, SGD with momentum, and what is saved of both after an update."""
    parameter = nn.Parameter(torch.ones(3, device=device))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return parameter, optimizer


def test_restoring_what_was_saved_before_an_update_drops_the_state_of_after_it():
    parameter, optimizer = momentum()
    OptimizerState.of(optimizer).restore(parameter, {"value": torch.zeros(3)}, 0)
    assert not optimizer.state.get(parameter) and torch.equal(parameter.detach(), torch.zeros(3))


def test_a_restored_state_is_on_the_device_of_its_parameter():
    parameter, optimizer = momentum("meta")
    OptimizerState.of(optimizer).restore(parameter, {"value": torch.zeros(3), "momentum_buffer": torch.ones(3)}, 1)
    assert optimizer.state[parameter]["momentum_buffer"].device == parameter.device


def test_numbers_of_a_state_are_saved_as_tensors_and_restored_as_numbers():
    parameter = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.ASGD([parameter], lr=0.1)
    optimizer.state[parameter] = {"step": torch.tensor(4.0), "eta": 0.25, "ax": torch.ones(3)}
    state = OptimizerState.of(optimizer)
    fields = state.fields(parameter)
    assert fields.keys() == {"value", "step", "number-eta", "ax"} and state.updates == 4
    optimizer.state.clear()
    state.restore(parameter, {**fields, "grid": torch.tensor(3), "version-1": torch.zeros(3)}, 4)
    assert optimizer.state[parameter].keys() == {"step", "eta", "ax"}
    assert optimizer.state[parameter]["eta"] == 0.25 and state.updates == 4


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_frozen_parameter_has_its_value_alone(kind):
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    state = OptimizerState.of(kind([nn.Parameter(torch.ones(1))], lr=0.1))
    assert state.fields(frozen).keys() == {"value"}
    state.restore(frozen, {"value": torch.zeros(3), "exp_avg": torch.ones(3), "exp_avg_sq": torch.ones(3)}, 1)
    assert not state.optimizer.state and torch.equal(frozen, torch.zeros(3))
