"""RMSNorm over the ranks of a worker, beside the plain loop in float64."""

import pytest
import torch
from torch import nn

from tests.numerics.test_split_rows import LOSSES, WIDTH, looped, require_equal, split

SLOTS, INNER = 5, 6


def tiny():
    """Its first outputs are about as small as the root of the default eps of float64."""
    layer = nn.Linear(INNER, 7, bias=False)
    with torch.no_grad():
        layer.weight.mul_(1e-8)
    return layer


def norms():
    """RMSNorms of columns that ranks share, of rows, and over two dimensions; with and without weight and eps."""
    return [
        lambda: nn.Linear(WIDTH, SLOTS * INNER),
        lambda: nn.RMSNorm(SLOTS * INNER, eps=1e-3),
        nn.GELU,
        lambda: nn.Unflatten(1, (SLOTS, INNER)),
        lambda: nn.RMSNorm((SLOTS, INNER)),
        nn.GELU,
        tiny,
        lambda: nn.RMSNorm(7, elementwise_affine=False),
        nn.GELU,
        nn.Flatten,
        lambda: nn.Linear(SLOTS * 7, WIDTH),
    ]


LOSSES[norms] = nn.functional.mse_loss


@pytest.mark.parametrize(("tensor", "layout"), [(1, None), (2, None), (3, None), (3, "data"), (2, "6=1.1.2")])
def test_a_split_rms_norm_trains_as_a_plain_one(tensor, layout):
    require_equal(split(norms, tensor=tensor, layout=layout, microbatches=2), looped(norms, 2))
