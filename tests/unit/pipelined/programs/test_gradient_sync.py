"""A stage's sum overlaps the computation where it may, and starts after the flush otherwise."""

import asyncio
from types import SimpleNamespace

from pipelined.actors.actor import Actor
from pipelined.programs.gradient_sync import GradientSync
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
