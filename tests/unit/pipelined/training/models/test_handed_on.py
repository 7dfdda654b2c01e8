"""What layers hand on unread, as a run for an example shows it."""

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.training.models.sequential import LayeredModel
from pipelined.training.models.traced_model import Traced


class Pairs(nn.Module):
    """Calls a function with a pair, or a dict, of tensors."""

    def __init__(self, run):
        super().__init__()
        self.run = run

    def forward(self, x):
        return self.run(x)


def model(*runs, example=True):
    begin = lambda: Pairs(lambda x: (x, x))  # noqa: E731
    row = [begin, *[lambda run=run: Pairs(run) for run in runs]]
    return LayeredModel(pp.Sequential(row), nn.functional.mse_loss, 1, torch.zeros(2, 3) if example else None)


def written(pair):
    pair[1].add_(1)
    return pair[0], pair[1]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda pair: (torch.relu(pair[0]), pair[1]), {1: 1}),
        (lambda pair: (pair[1], torch.relu(pair[0])), {1: 0}),
        (lambda pair: pair[1], {1: 0}),
        (lambda pair: pair, {0: 0, 1: 1}),
        (lambda pair: {"h": pair[0] * 2, "more": [pair[1], None]}, {1: 1}),
        (lambda pair: (pair[0] + pair[1], pair[1]), {}),
        (lambda pair: (pair[0].view(pair[1].shape) * 1, pair[1]), {}),
        (lambda pair: (pair[0] * 1, pair[1].clone()), {}),
        (lambda pair: (pair[1], pair[1]), {}),
        (written, {0: 0}),
    ],
)
def test_a_tensor_that_a_layer_gives_as_it_took_it_and_does_not_read(run, expected):
    assert model(run).handed_on(range(1, 2), torch.float32) == expected


def test_layers_after_one_another_hand_on_what_each_of_them_does():
    swap, read = lambda pair: (pair[1], torch.relu(pair[0])), lambda pair: (pair[0] + pair[1], pair[1])
    row = model(swap, swap, read)
    assert row.handed_on(range(1, 3), torch.float32) == {} and row.handed_on(range(2, 3), torch.float32) == {1: 0}
    assert row.handed_on(range(1, 4), torch.float32) == {}


def test_without_an_example_and_where_one_tensor_goes_on_nothing_is_known():
    assert model(lambda pair: pair, example=False).handed_on(range(1, 2), torch.float32) == {}
    plain = LayeredModel(pp.Sequential([nn.ReLU, nn.Identity, nn.ReLU]), nn.functional.mse_loss, 1, torch.zeros(2, 3))
    assert plain.handed_on(range(1, 2), torch.float32) == {}


class Skipping(nn.Module):
    """The first layer's output goes to the last one, too."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(3, 3) for _ in range(4))

    def forward(self, x):
        y = self.a(x)
        return self.d(self.c(self.b(torch.relu(y)))) + y


def test_a_traced_module_hands_on_what_no_operation_of_a_piece_uses():
    traced = Traced(Skipping(), torch.zeros(2, 3)).bind(nn.functional.mse_loss)
    handed = [traced.handed_on(range(layer, layer + 1), torch.float32) for layer in range(traced.layers)]
    assert handed[0] == handed[-1] == {}
    assert any(handed), handed
