"""Forwards that write what later forwards read: with every activation kept or computed again, as in a plain loop."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import pipelined as pp

MICROBATCHES = 4


class Chained(nn.Module):
    """Each forward reads what the one before wrote."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.ones(4))

    def forward(self, x):
        y = (x * self.seen.clone()).tanh()
        self.seen += x.detach().mean(0)
        return y


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 4), Chained(), spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 4)).double()


def batches():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(2, 16, 4, generator=generator, dtype=torch.float64).unbind() for _ in range(3)]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def plain(module):
    """The losses and the state of a plain loop over microbatches."""
    optimizer, losses = sgd(module.parameters()), []
    for x, y in batches():
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            loss = nn.functional.mse_loss(module(inputs), targets)
            (loss / MICROBATCHES).backward()
            total += loss.item()
        optimizer.step()
        losses.append(total / MICROBATCHES)
    return losses, module.state_dict()


def trained(layers, **settings):
    given = {"schedule": "gpipe", "depth": 2, "microbatches": MICROBATCHES, "dtype": torch.float64}
    return pp.train(layers, batches(), loss=nn.functional.mse_loss, optimizer=sgd, **(given | settings))


def recomputed_layers():
    return [pp.recomputed(lambda layer=layer: copy.deepcopy(layer)) for layer in model()]


@pytest.mark.parametrize(
    ("layers", "settings"),
    [
        (model, {"recompute": True}),
        (model, {"recompute": True, "schedule": "zb_h1"}),
        (recomputed_layers, {}),
        (recomputed_layers, {"recompute": True}),
    ],
)
def test_a_recomputed_forward_reads_the_buffers_of_the_first(layers, settings):
    losses, state = plain(model())
    done = trained(layers(), **settings)
    assert done.losses == losses
    for name, value in done.state_dict().items():
        assert torch.equal(value, state[name]), name
