"""A user's model for a swarm, and the plain loop in float64 that the swarm must equal.

The plain loop uses none of the runtime, except for the seeds of dropout (`layer_seed`).
"""

import functools

import pytest
import torch
from torch import nn

import pipelined as pp

STEPS, ROWS, WIDTH, SEED, MICROBATCHES = 5, 16, 8, 3, 4
DTYPE = torch.float64


def linear():
    return nn.Linear(WIDTH, WIDTH)


def layers():
    """Trained and frozen layers, dropout, and layers without parameters."""
    return [
        linear,
        nn.Tanh,
        lambda: nn.Dropout(0.3),
        lambda: linear().requires_grad_(False),
        lambda: nn.Sequential(linear(), nn.Dropout(0.2)),
        nn.GELU,
        linear,
    ]


def batches(steps=STEPS):
    generator = torch.Generator().manual_seed(7)
    return [tuple(torch.randn(2, ROWS, WIDTH, generator=generator, dtype=DTYPE)) for _ in range(steps)]


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, dampening=0.3)


def halved(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


@functools.cache
def plain(optimizer=adam, lr_scheduler=None, clip=0.0, steps=STEPS):
    """Losses and state of a loop over microbatches in one process."""
    torch.manual_seed(SEED)
    model = nn.Sequential(*[build() for build in layers()]).to(DTYPE)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    chosen, losses = optimizer(trained), []
    scheduler = lr_scheduler(chosen) if lr_scheduler else None
    for step, (inputs, targets) in enumerate(batches(steps)):
        chosen.zero_grad()
        losses.append(0.0)
        for number, (x, y) in enumerate(zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True)):
            for name, layer in model.named_children():
                torch.manual_seed(pp.layer_seed(SEED, step, number, name))
                x = layer(x)
            loss = nn.functional.mse_loss(x, y) / MICROBATCHES
            loss.backward()
            losses[-1] += loss.item()
        norm = torch.stack([parameter.grad.norm() for parameter in trained]).norm()
        for parameter in trained:
            parameter.grad *= min(1.0, clip / norm) if clip else 1.0
        chosen.step()
        if scheduler:
            scheduler.step()
    return losses, model.state_dict()


def assert_equal(losses, state, expected, tolerance=1e-10):
    assert losses == pytest.approx(expected[0], rel=0, abs=tolerance)
    assert list(state) == list(expected[1])
    for name, value in expected[1].items():
        torch.testing.assert_close(state[name], value, rtol=0, atol=tolerance)
