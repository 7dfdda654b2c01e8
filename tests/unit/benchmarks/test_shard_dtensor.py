"""Blocks split over ranks give what the plain blocks give, and sizes that torch does not split are refused."""

import asyncio

import pytest
import torch

from apps.common.lm.sharded.layouts import factors_of
from benchmarks.harness.timed_executor import TimedExecutor
from benchmarks.pipelines.blocks import SplitBlocks, Whole, Work, apart
from benchmarks.shard_dtensor import Options
from pipelined.aio.clock import RealClock
from pipelined.errors import UsageError
from pipelined.sharding import MeshGroups
from transports.local import world

SMALL = Work(128, 8, batch=2, layers=2)


def test_whole_results_are_those_of_a_plain_loop():
    whole, part, x = Whole.of(SMALL), SMALL.plain(), SMALL.stream("input").requires_grad_()
    y = x
    for block in part.transformer.h.values():
        y = block(y)
    (y * SMALL.stream("gradient")).sum().backward()
    assert torch.equal(y, whole.output) and torch.allclose(x.grad, whole.back, rtol=1e-5, atol=1e-6)
    assert whole.gradients.keys() == dict(part.named_parameters()).keys()


@pytest.mark.parametrize("layout", ["megatron", "data"])
def test_split_blocks_give_what_the_plain_ones_give(layout):
    whole = Whole.of(SMALL)

    async def on_rank(end):
        blocks = SplitBlocks(SMALL, MeshGroups(end, 1), TimedExecutor({}, RealClock()), factors_of(layout, 2))
        await blocks.step()
        await blocks.step()
        return apart(blocks.results(whole))

    async def main():
        return await asyncio.gather(*map(on_rank, world(2)))

    assert max(asyncio.run(main()))[0] < 1e-5


def test_what_differs_most_is_named():
    ones, most = torch.ones(3), torch.tensor([0.0, 4.0])
    assert apart([("a", ones * 1.5, ones), ("b", most * 0.75, most)]) == (0.5, "a")
    assert apart([("a", torch.tensor([float("nan")]), torch.ones(1)), ("b", ones * 9, ones)])[1] == "a"
    assert apart([("empty", torch.ones(0), torch.ones(0))])[0] == 0.0


@pytest.mark.parametrize("layout", ["zero3", "summa", "wte=2.1.1+zero1"])
def test_a_layout_of_weights_in_parts_is_refused_as_whole_ones_are_timed(layout):
    with pytest.raises(UsageError, match=r"whole weights are timed \(--layout .*take data, megatron or factors alone"):
        Options(layout=layout)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"widths": (256, 64)}, r"--widths 64 does not split evenly \(ranks: 2, .*: 64\); take multiples of 128"),
        ({"sequences": (7,)}, r"--sequences 7 does not split evenly .*; take multiples of 2"),
    ],
)
def test_sizes_that_torch_does_not_split_are_refused_before_the_first_step(sizes, message):
    Options().require_fitting(2)
    with pytest.raises(UsageError, match=message):
        Options(**sizes).require_fitting(2)
