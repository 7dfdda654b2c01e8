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


def plain(module, given):
    """The losses and the state of a plain loop over microbatches."""
    optimizer, losses = sgd(module.parameters()), []
    for x, y in given:
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets in zip(x.chunk(MICROBATCHES), y.chunk(MICROBATCHES), strict=True):
            loss = nn.functional.mse_loss(module(inputs), targets)
            (loss / MICROBATCHES).backward()
            total += loss.item()
        optimizer.step()
        losses.append(total / MICROBATCHES)
    return losses, module.state_dict()


def trained(layers, given, **settings):
    defaults = {"schedule": "gpipe", "depth": 2, "microbatches": MICROBATCHES, "dtype": torch.float64}
    return pp.train(layers, given, loss=nn.functional.mse_loss, optimizer=sgd, **(defaults | settings))


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
    losses, state = plain(model(), batches())
    done = trained(layers(), batches(), **settings)
    assert done.losses == losses
    for name, value in done.state_dict().items():
        assert torch.equal(value, state[name]), name


def renormalised():
    """An embedding of which each forward changes the rows that it takes."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(5, 4, max_norm=1.0), nn.Linear(4, 4)).double()


def ids():
    return [((x[:, 0] * 9).long() % 5, y) for x, y in batches()]


def test_a_parameter_that_a_forward_writes_is_that_of_a_plain_loop_where_a_stage_has_one_holder():
    losses, state = plain(renormalised(), ids())
    done = trained(renormalised(), ids())
    assert done.losses == losses
    for name, value in done.state_dict().items():
        assert torch.equal(value, state[name]), name


@pytest.mark.parametrize(
    "settings",
    [
        {"width": 2, "microbatches": 2},
        {"schedule": "chimera"},
        {"schedule": "pipedream_2bw", "width": 2},
        {"recompute": True},
    ],
    ids=str,
)
def test_a_parameter_that_a_forward_writes_is_refused_where_forwards_would_differ(settings):
    with pytest.raises(
        pp.UsageError, match=r"a forward writes parameter 0\.weight of stage 0 \(ranks with this stage:"
    ):
        trained(renormalised(), ids(), **settings)
