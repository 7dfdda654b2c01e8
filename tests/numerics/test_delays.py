"""Pipelines without a flush give, to the bit or nearly, what a plain loop gives that takes gradients at old weights."""

import asyncio

import numpy as np
import pytest
import torch

from pipelined.actor import Actor
from pipelined.asynchronous_trainer import AsynchronousTrainer
from pipelined.clock import RealClock
from pipelined.device import TorchDevice
from pipelined.trace import NullTracer
from pipelined.trainer import Numerics
from tests.numerics.delayed import RECIPE, delayed, double_buffered, pipedream
from tests.numerics.plain import SEQUENCE, Case, Feed
from transports import new_event_loop
from transports.local import world

STEPS = 5


@pytest.fixture(autouse=True)
def one_thread():
    """Many ranks in one process must not fight over two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


async def rank(case, transport, stretches):
    """Train one rank; its reports, and what it holds at the end."""
    device = TorchDevice("cpu", RealClock(), transport.computing)
    numerics, reports = Numerics(torch.float64, recompute=case.recompute), []
    try:
        async with Actor(transport) as actor:
            trainer = AsynchronousTrainer(
                actor, case.model, case.plan, RECIPE, numerics, device, torch.device("cpu"), Feed(), NullTracer(),
                SEQUENCE, seed=3,
            )  # fmt: skip
            for steps in stretches:
                reports.append(await trainer.stretch(steps, lambda: False, reports.append))
    finally:
        device.close()
    return reports, {name: p.detach() for name, p in trainer.replica.parameters.items()}


def together(case, stretches):
    async def main():
        transports = world(case.plan.world_size)
        async with asyncio.TaskGroup() as ranks:
            tasks = [ranks.create_task(rank(case, transport, stretches)) for transport in transports]
        for transport in transports:
            await transport.close()
        return [task.result() for task in tasks]

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main())


def assert_same(expected, reports, weights, tolerance=1e-12):
    np.testing.assert_allclose([r.loss for r in reports], expected.losses, rtol=tolerance)
    np.testing.assert_allclose([r.grad_norm for r in reports], expected.norms, rtol=tolerance)
    for name, value in weights.items():
        largest = float(expected.weights[name].abs().max())
        error = float((value - expected.weights[name]).abs().max())
        assert error <= tolerance * largest, f"{name}: {error:.2e} beside {largest:.2e}"


CASES = [
    Case("pipedream", 4, 1, 4),
    Case("pipedream", 4, 1, 1, dropout=0.2),
    Case("pipedream", 3, 2, 2, tied=False),
    Case("pipedream", 2, 2, 3, recompute=True, dropout=0.2),
    Case("pipedream", 1, 2, 2),
    Case("pipedream_2bw", 4, 1, 4),
    Case("pipedream_2bw", 3, 2, 5, dropout=0.2, recompute=True),
    Case("pipedream_2bw", 2, 1, 2, tied=False),
    Case("pipedream_2bw", 1, 1, 1),
]


def name(case):
    return f"{case.schedule}-D{case.depth}-W{case.width}-N{case.microbatches}"


@pytest.mark.parametrize("case", CASES, ids=name)
def test_a_stretch_gives_the_numbers_of_the_delayed_recurrence(case):
    version = double_buffered(case.microbatches) if "2bw" in case.schedule else pipedream(case.depth)
    expected = delayed(case, STEPS, version)
    for reports, weights in together(case, [range(STEPS)]):
        assert [report.step for report in reports] == list(range(STEPS))
        assert_same(expected, reports, weights)
