"""A stage's optimizer of torch equals torch alone, also after its state was loaded elsewhere; and what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.api.swarm.optimizer import UserStageOptimizer
from pipelined.api.user_optimizer import UserOptimizer

KINDS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.5, nesterov=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


def halved(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


def parameters():
    generator = torch.Generator().manual_seed(1)
    return {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, shape in (("w", (3, 2)), ("b", (2,)))}


def gradients(step):
    generator = torch.Generator().manual_seed(step + 9)
    return [torch.randn(parameter.shape, generator=generator) for parameter in parameters().values()]


def stage_optimizer(make, own):
    return UserStageOptimizer(own, lambda: UserOptimizer(make, scheduler=halved), seed=0, stage=0)


@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_torch_s_also_where_another_peer_continues(kind):
    """Three updates here, then two at a peer that loaded the state; its layout is the same at every step."""
    plain, own, others = parameters(), parameters(), parameters()
    optimizer = KINDS[kind](list(plain.values()))
    scheduler = halved(optimizer)
    here, there = stage_optimizer(KINDS[kind], own), stage_optimizer(KINDS[kind], others)
    layout = {name: (tensor.dtype, tensor.shape) for name, tensor in here.state().items()}
    there.load({name: tensor.clone() for name, tensor in here.state().items()})
    for step in range(5):
        for parameter, gradient in zip(plain.values(), gradients(step), strict=True):
            parameter.grad = gradient
        optimizer.step()
        scheduler.step()
        if step == 3:
            there.load({name: tensor.clone() for name, tensor in here.state().items()})
        (there if step >= 3 else here).apply(step, gradients(step))
        assert {name: (t.dtype, t.shape) for name, t in here.state().items()} == layout
    for name, parameter in plain.items():
        np.testing.assert_array_equal(others[name].detach().numpy(), parameter.detach().numpy())


class Noisy(torch.optim.SGD):
    """Adds noise of torch's generator to every update."""

    def step(self, closure=None):
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(torch.randn_like(parameter))


def test_noise_of_an_optimizer_is_the_same_at_every_peer():
    one, other = parameters(), parameters()
    for own in (one, other):
        torch.rand(len(own))  # the generators of two peers differ
        stage_optimizer(lambda p: Noisy(p, lr=0.1), own).apply(0, gradients(0))
    assert all(torch.equal(one[name], other[name]) for name in one)


class Counting(torch.optim.SGD):
    """Keeps its state in its group."""

    def step(self, closure=None):
        self.param_groups[0]["count"] = self.param_groups[0].get("count", 0) + 1
        return super().step(closure)

    def __init__(self, parameters):
        super().__init__(parameters, lr=0.1)
        self.param_groups[0]["count"] = 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (torch.optim.LBFGS, r"LBFGS needs a closure .*without a closure"),
        (Counting, r"Counting keeps state in its parameter groups \(0\.count\)"),
    ],
)
def test_an_optimizer_that_peers_cannot_share_is_refused(make, message):
    with pytest.raises(pp.UsageError, match=message):
        stage_optimizer(make, parameters())
