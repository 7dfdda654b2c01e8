"""Exact sums of one rank: summands on a grid, and the grids in a checkpoint."""

import numpy as np
import pytest
import torch
from torch import nn

from pipelined.programs.plan import Plan
from pipelined.programs.updates.exact_grid import Grid
from pipelined.training.sums.bucket import fill_bucket
from pipelined.training.sums.exact_sums import ExactSums
from pipelined.training.sums.grids import GRID


def one_rank():
    """The sums of a rank that holds "w" of two parameters, and its bucket."""
    weight = nn.Parameter(torch.zeros(3))
    bucket = fill_bucket(Plan("gpipe", 1, 1, 1, 1), (0,), {"w": weight})
    return ExactSums(None, None, buckets=[bucket], tied=(), microbatches=4, names=["v", "w"]), bucket


def collect(sums, bucket, values):
    bucket.gradient.copy_(torch.tensor(values))
    sums.collect(0)


def test_a_summand_without_a_grid_is_left_out_and_the_next_pass_has_its_grid():
    sums, bucket = one_rank()
    collect(sums, bucket, [1.0, -2.0, 0.5])
    assert sums.largest().tolist() == [0.0, 2.0, 1.0] and not bucket.exact.any() and not bucket.gradient.any()
    sums.adopt(sums.largest())
    for _ in range(2):
        collect(sums, bucket, [1.0, -2.0, 0.5])
    assert sums.largest().tolist() == [0.0, 2.0, 0.0] and bucket.exact.tolist() == [2.0, -4.0, 1.0]


def test_a_summand_that_is_not_finite_is_in_the_sum_so_that_the_norm_reports_all_ranks():
    sums, bucket = one_rank()
    collect(sums, bucket, [1.0, float("inf"), 0.5])
    assert bucket.exact.tolist()[0] == np.inf and sums.largest()[1] == np.inf


def test_the_grid_of_a_checkpoint_takes_the_place_of_the_present_one_and_none_of_none():
    sums, _ = one_rank()
    assert sums.state_of("w") == {}
    sums.adopt(np.array([0.0, 2.0, 0.0]))
    saved = sums.state_of("w")
    assert saved[GRID].item() == Grid.for_sums(2.0, 4).exponent
    sums.restore("w", {GRID: torch.tensor(7)})
    assert sums.state_of("w")[GRID].item() == 7
    sums.restore("w", {})
    sums.restore("v", saved)  # held elsewhere
    assert sums.state_of("w") == sums.state_of("v") == {}


def test_running_statistics_are_refused():
    with pytest.raises(ValueError, match="a norm of stage 3 has running statistics"):
        one_rank()[0].require(3, running_statistics=True)
