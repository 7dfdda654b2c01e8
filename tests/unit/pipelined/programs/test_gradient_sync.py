"""A stage's sum overlaps the computation where it may, and starts after the flush otherwise."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from collectives import Group
from collectives.arrays import Vector
from pipelined.actors.actor import Actor
from pipelined.programs.gradient_sync import GradientSync, place_gradients, sum_over_holders
from pipelined.programs.plan import Plan
from pipelined.training.parameters import fill_bucket
from transports.testing import local_world


def trace(overlapped, events):
    async def main():
        (only,) = local_world(1)
        seen = []

        async def sums(bucket):
            seen.append(bucket.stages)

        buckets = [SimpleNamespace(stages=stages) for stages in ((0,), (0, 3), (3,))]
        async with Actor(only) as actor:
            sync = GradientSync(actor, buckets, sums, overlapped, held=(0, 3))
            for stage in events:
                sync.stage_done(stage)
                await asyncio.sleep(0)
                seen.append(f"after {stage}")
            await sync.finish()
        return seen

    return asyncio.run(main())


def test_the_sum_of_an_overlapped_stage_starts_before_the_next_backward():
    assert trace({3}, [3, 0]) == [(3,), "after 3", "after 0", (0,), (0, 3)]


def test_a_bucket_of_two_stages_waits_for_both():
    assert trace({0, 3}, [3, 0]) == [(3,), "after 3", (0,), (0, 3), "after 0"]


def test_a_stage_without_a_microbatch_adds_zeros_after_the_flush():
    assert trace({3}, []) == [(0,), (0, 3), (3,)]


@pytest.mark.parametrize(("algorithm", "placed"), [("auto", True), ("ring:1024,shared", True), ("ring", False)])
async def test_gradients_lie_where_their_sums_reach_them_if_these_go_through_shared_memory(algorithm, placed):
    ends, plan = local_world(2, shares=True), Plan("gpipe", depth=1, width=2, microbatch=1, microbatches=2)

    async def rank(end):
        weight = nn.Parameter(torch.zeros(200, 1000))
        bucket, group = fill_bucket(plan, (0,), {"w": weight}), Group(end, (0, 1), 0)
        groups = {(0,): group}
        await place_gradients(groups, [bucket], algorithm)
        assert (group.allocated(Vector.of(bucket.gradient)) is not None) == placed
        for _ in range(2):
            ((end.rank + 1) * weight).sum().backward()
            await sum_over_holders(groups, algorithm, bucket)
            assert (weight.grad == 3).all()
            bucket.gradient.zero_()

    await asyncio.wait_for(asyncio.gather(*map(rank, ends)), 30)
