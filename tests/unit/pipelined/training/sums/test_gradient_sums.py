"""Gradients are summed over their holders, through shared memory where the algorithm uses it."""

import asyncio

import pytest
import torch
from torch import nn

from collectives import Group
from collectives.arrays import Vector
from pipelined.programs.plan import Plan
from pipelined.training.sums.bucket import fill_bucket
from pipelined.training.sums.gradient_sums import GradientSums
from tests.conformance.worlds import local_world


@pytest.mark.parametrize(("algorithm", "placed"), [("auto", True), ("ring:1024,shared", True), ("ring", False)])
async def test_gradients_lie_where_their_sums_reach_them_if_these_go_through_shared_memory(algorithm, placed):
    ends, plan = local_world(2, shared_memory=True), Plan("gpipe", depth=1, width=2, microbatch_size=1, microbatches=2)

    async def rank(end):
        weight = nn.Parameter(torch.zeros(200, 1000))
        bucket, group = fill_bucket(plan, (0,), {"w": weight}), Group(end, (0, 1), 0)
        sums = GradientSums({(0,): group}, algorithm)
        await sums.allocate_shared([bucket])
        assert (group.shared.find(Vector.of(bucket.gradient)) is not None) == placed
        for _ in range(2):
            ((end.rank + 1) * weight).sum().backward()
            await sums.sum(bucket)
            assert (weight.grad == 3).all()
            bucket.gradient.zero_()

    await asyncio.wait_for(asyncio.gather(*map(rank, ends)), 30)
