"""A cluster over endpoints trains as the same pipeline in one process: to the bit, if it does the same in order."""

import asyncio
from dataclasses import replace

import pytest
import torch

from pipelined.programs.plan import Plan
from pipelined.traces.file import write
from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.segments.replay import of_rank, packed, read_orders
from tests.numerics.plain import Case
from tests.numerics.ravnest import Together, trained, training_of
from tests.numerics.trained import opened
from transports import new_event_loop
from transports.local import world

OPTIMIZER = OptimizerConfig(lr=1e-2, steps=5, warmup=2, clip=0)
CASE = Case("async_1f1b", 3, 1, 3, dropout=0.2, tied=False)
STEPS = 5


def in_process(job, orders):
    """The losses of the in-process trainer that follows these orders."""

    async def rank(transport):
        reports = []
        async with opened(transport, job, orders=of_rank(packed(orders), transport.rank)) as trainer:
            reports.append(await trainer.train(range(STEPS), on_step=reports.append))
        return reports

    async def everyone():
        return await asyncio.gather(*map(rank, world(job.plan.world_size)))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(everyone())[0]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ahead", [None, 5])
def test_a_cluster_over_endpoints_has_the_losses_of_the_pipeline_in_one_process(tmp_path, dtype, ahead):
    together = Together(training_of(CASE, STEPS, OPTIMIZER, dtype), 3, ahead)
    steps = trained(together)
    path = tmp_path / "trace.json"
    limits = [5, 4, 2] if ahead else [3, 2, 1]
    plan = Plan("async_1f1b", 3, 1, 2, 3, {"ahead": ",".join(map(str, limits))})
    (row,) = together.generation.clusters
    write(path, [together.tracers[place.holder.name].events() for place in row])
    job = CASE.job(dtype, optimizer_settings=OPTIMIZER)
    cut = tuple(range(place.first, place.end) for place in row)
    reports = in_process(replace(job, plan=plan, cut=cut), read_orders(path, plan))
    assert [place.alive for place in row] == limits
    assert [(cluster, each.step) for cluster, each in steps] == [(0, step) for step in range(STEPS)]
    assert [each.loss for _, each in steps] == [report.loss for report in reports]
    assert [each.staleness for _, each in steps] == [list(report.staleness) for report in reports]
