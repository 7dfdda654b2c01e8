"""Activations alive in real training are as many as the schedule's price says, and for Chimera never more than D."""

import asyncio

import pytest
import torch

from benchmarks._footprint import count_activations
from pipelined.actor import Actor
from pipelined.clock import RealClock
from pipelined.device import TorchDevice
from pipelined.pricer import Costs, price
from pipelined.recorder import record
from pipelined.schedules import find
from pipelined.trace import NullTracer
from pipelined.trainer import Numerics, Trainer
from tests.numerics.arrangements import name
from tests.numerics.plain import RECIPE, SEQUENCE, Case, Feed
from transports import new_event_loop
from transports.local import world

CASES = [
    Case(schedule, depth, 1, microbatches)
    for schedule in ("gpipe", "one_f_one_b", "chimera", "zb_h1", "zb_v", "dualpipe", "dualpipe_v")
    for depth in (2, 4)
    for microbatches in sorted({1, 3, depth, 2 * depth + 1})
]
CASES += [Case("chimera", 4, 1, 9, pipes=4), Case("chimera", 4, 2, 5), Case("chimera", 4, 1, 8, recompute=True)]
CASES += [Case("chimera", 4, 1, 8, scale="forward-doubling"), Case("chimera", 4, 1, 4, scale="backward-halving")]


def peaks(case):
    """The most microbatches that were ever alive on each rank in two steps of training."""

    async def rank(transport):
        device = TorchDevice("cpu", RealClock(), transport.computing)
        try:
            async with Actor(transport) as actor:
                trainer = Trainer(
                    actor, case.model, case.plan, RECIPE, Numerics(recompute=case.recompute), device,
                    torch.device("cpu"), Feed(), NullTracer(), SEQUENCE, seed=3,
                )  # fmt: skip
                kept = count_activations(trainer)
                for step in range(2):
                    await trainer.step(step)
                    assert not kept.alive
                return kept.peak_microbatches
        finally:
            device.close()

    async def everyone():
        return await asyncio.gather(*map(rank, world(case.plan.world_size)))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(everyone())


def priced(case):
    """What the schedule's price says, a worker of each group."""
    timeline = price(record(find(case.schedule), case.plan.shape), Costs())
    return [peak * case.parts for peak in timeline.peak_activations] * case.width


@pytest.mark.parametrize("case", CASES, ids=name)
def test_as_many_microbatches_are_alive_as_the_price_says(case):
    assert peaks(case) == priced(case)


@pytest.mark.parametrize("microbatches", [4, 8, 9])
def test_chimera_keeps_no_more_than_its_depth_alive_and_gpipe_does(microbatches):
    assert max(peaks(Case("chimera", 4, 1, microbatches))) <= 4
    assert peaks(Case("gpipe", 4, 1, microbatches)) == [microbatches] * 4
