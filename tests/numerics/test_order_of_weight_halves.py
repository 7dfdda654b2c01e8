"""When weight halves run may be a matter of timing; the bits are not, and the order can be replayed."""

import asyncio
import random
import time

import pytest
import torch

from pipelined.traces.file import write
from pipelined.traces.tracer import Tracer
from pipelined.training.segments.replay import of_rank, packed, read_orders
from pipelined.training.segments.worker import TrainWorker
from tests.numerics.plain import Case, assert_same, pipelined, plain
from transports import new_event_loop
from transports.local import world

CASE = Case("chimera_w", 4, 1, 9, dropout=0.2, recompute=True)
STEPS = 2


def train(path, orders=None):
    """Outcomes by rank, and the orders that the run's trace gives."""
    size = CASE.plan.world_size
    tracers = [Tracer(time.perf_counter) for _ in range(size)]

    async def one(transport):
        mine = of_rank(packed(orders), transport.rank) if orders else None
        return await pipelined(CASE, transport, STEPS, tracers[transport.rank], mine)

    async def everyone():
        return await asyncio.gather(*map(one, world(size)))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        outcomes = runner.run(everyone())
    write(path, [tracer.events() for tracer in tracers])
    return outcomes, read_orders(path, CASE.plan)


@pytest.fixture
def answering(monkeypatch):
    """Make workers answer whether a message has come as they are told to, instead of looking."""
    return lambda answer: monkeypatch.setattr(TrainWorker, "_has_arrived", lambda self, *at: answer())


@pytest.mark.in_turns(4)
def test_bits_are_the_same_whatever_the_timing_and_an_order_can_be_replayed(answering, tmp_path):
    seeded = random.Random(1)
    runs = []
    for answer in (lambda: True, lambda: False, lambda: seeded.random() < 0.5):
        answering(answer)
        runs.append(train(tmp_path / "trace.json"))
    runs.append(train(tmp_path / "replayed.json", runs[-1][1]))
    orders = [order for _, order in runs]
    assert orders[0] != orders[1] != orders[2] != orders[0] and orders[3] == orders[2]
    for outcomes, _ in runs[1:]:
        for first, other in zip(runs[0][0], outcomes, strict=True):
            assert first.losses == other.losses and first.norms == other.norms
            for name, value in first.parameters.items():
                assert torch.equal(value, other.parameters[name]), name
    assert_same(plain(CASE, STEPS), runs[0][0][0])
