"""The runs of a row's layers for an example: in the dtype that the layers have, also where a layer needs values."""

import pytest
import torch
from torch import nn

from pipelined.training.models.sequential import LayeredModel, Sequential


class Scaled(nn.Module):
    """It needs values, which the meta device has not."""

    def forward(self, x):
        return x * float(x.abs().max())


class InDouble(nn.Module):
    """Its code takes float64 alone."""

    def forward(self, x):
        return x @ torch.eye(4, dtype=torch.float64)


def weigh(row, dtype):
    return LayeredModel(Sequential(row), nn.functional.mse_loss, 1, torch.ones(2, 4, dtype=dtype))


@pytest.mark.parametrize("needs_values", [Scaled, lambda: nn.BatchNorm1d(4, momentum=None)], ids=["float", "momentum"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_row_in_any_dtype_is_weighed_where_a_layer_needs_values(needs_values, dtype):
    layered = weigh(nn.Sequential(nn.Linear(4, 4), needs_values(), nn.Linear(4, 4)).to(dtype), dtype)
    assert layered.costs(1)[0] == 1 + 20 + 2 * 4 * 4


@pytest.mark.parametrize("given", [torch.float32, torch.float64], ids=str)
def test_an_example_is_converted_to_the_dtype_of_the_layers(given):
    layered = weigh(nn.Sequential(nn.Linear(4, 4), InDouble(), Scaled()).double(), given)
    layered.check_inputs(torch.ones(3, 4, dtype=given))


def test_layers_of_several_dtypes_are_weighed_in_one_as_they_train():
    row = nn.Sequential(nn.Linear(4, 4), Scaled(), nn.Linear(4, 4).double())
    assert weigh(row, torch.float32).costs(1)[2] == 1 + 20 + 2 * 4 * 4
    assert row[2].weight.dtype == torch.float64
