"""Copies of modules: the hooks of their parameters go with them."""

from functools import partial

import pytest
import torch
from torch import nn

from pipelined.training.job.module_tensors import copy_module


def backward(module):
    module(torch.ones(1, 2)).sum().backward()
    return module.weight.grad


def test_a_copy_has_the_hooks_of_the_parameters_in_their_order():
    calls = []
    module = nn.Linear(2, 2)
    module.weight.register_hook(lambda gradient: gradient + 1)
    module.weight.register_hook(lambda gradient: gradient * 2)
    module.weight.register_post_accumulate_grad_hook(lambda parameter: calls.append(parameter.grad.tolist()))
    copied = copy_module(copy_module(module))
    assert backward(copied).tolist() == [[4, 4], [4, 4]]
    assert calls == [[[4, 4], [4, 4]]]
    assert module.weight.grad is None


def test_a_parameter_that_was_frozen_after_it_got_a_hook_is_copied():
    module = nn.Linear(2, 2)
    module.weight.register_hook(lambda gradient: gradient * 2)
    module.weight.requires_grad_(False)
    assert torch.equal(copy_module(module).weight, module.weight)


def test_a_parameter_that_parts_share_has_its_hooks_once():
    module = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    module[0].weight.register_hook(lambda gradient: gradient * 2)
    copied = copy_module(module)
    assert copied[1].weight is copied[0].weight
    assert len(copied[0].weight._backward_hooks) == 1


class Masked(nn.Linear):
    """A layer whose hook reads a buffer of its own."""

    def __init__(self, register):
        super().__init__(2, 2, bias=False)
        self.register_buffer("mask", torch.ones(2, 2))
        self.weight.register_hook(register(self))

    def mask_gradient(self, gradient):
        return gradient * self.mask


def times(mask, gradient):
    return gradient * mask


def closure(module):
    return lambda gradient: gradient * module.mask


def default(module):
    return lambda gradient, mask=module.mask: gradient * mask


HOOKS = {
    "closure": closure,
    "default": default,
    "method": lambda module: module.mask_gradient,
    "partial": lambda module: partial(times, module.mask),
}


@pytest.mark.parametrize("register", HOOKS.values(), ids=HOOKS)
def test_the_hook_of_a_copy_reads_the_copy(register):
    module = Masked(register)
    copied = copy_module(module)
    copied.mask.zero_()
    assert backward(copied).tolist() == [[0, 0], [0, 0]]
    assert backward(module).tolist() == [[1, 1], [1, 1]]


class Observer:
    """An object of a user, outside of the module."""

    def __init__(self):
        self.calls = 0

    def note(self, gradient):
        self.calls += 1


def test_the_hook_of_a_copy_calls_the_same_object_outside_of_the_module():
    module = nn.Linear(2, 2)
    observer = Observer()
    module.weight.register_hook(observer.note)
    backward(copy_module(module))
    assert observer.calls == 1
