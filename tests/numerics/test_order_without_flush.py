"""Without a flush the order of a run may be a matter of timing; written down, it can be replayed to the last bit."""

import asyncio
import random

import pytest
import torch

from pipelined.traces.file import write
from pipelined.training.exchange.prefetch import MessageQueues
from pipelined.training.segments.replay import of_rank, packed, read_orders
from tests.numerics.plain import Case
from tests.numerics.segments import rank, segments
from transports import new_event_loop
from transports.local import world

STEPS = 6
DRAINS = range(4), range(4, STEPS)


def train(case, path, orders=None, several=DRAINS):
    """Outcomes by rank, and the order that the run's trace gives."""

    async def everyone():
        transports, mine = world(case.plan.world_size), packed(orders) if orders else {}
        async with asyncio.TaskGroup() as ranks:
            tasks = [
                ranks.create_task(rank(case, t, segments(*several), orders=of_rank(mine, t.rank))) for t in transports
            ]
        for transport in transports:
            await transport.close()
        return [task.result() for task in tasks]

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        outcomes = runner.run(everyone())
    write(path, [outcome.events for outcome in outcomes])
    return outcomes, read_orders(path, case.plan)


@pytest.fixture
def unsteady(monkeypatch):
    """Make workers overlook messages that are there, now and then, so that timing is another with each seed."""
    looked = MessageQueues.arrived

    def seeded(seed):
        chance = random.Random(seed)
        monkeypatch.setattr(MessageQueues, "arrived", lambda self, *at: looked(self, *at) and chance.random() < 0.5)

    return seeded


def told(outcome):
    return [(r.step, r.loss, r.grad_norm, r.staleness) for r in outcome.reports]


def others(unsteady, case, path):
    """Further runs, each with timing of its own."""
    for seed in range(2, 12):
        unsteady(seed)
        yield train(case, path)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("width", [1, 2])
def test_an_order_is_replayed_to_the_last_bit_with_its_delays(unsteady, tmp_path, width):
    case = Case("async_1f1b", 3, width, 3, dropout=0.2)
    unsteady(1)
    first, first_order = train(case, tmp_path / "trace.json")
    assert any(  # two seeds may give one order by chance
        order != first_order and told(first[0]) != told(outcomes[0])
        for outcomes, order in others(unsteady, case, tmp_path / "trace.json")
    )
    unsteady(0)
    again, again_order = train(case, tmp_path / "replayed.json", first_order)
    assert again_order == first_order
    for one, replayed in zip(first, again, strict=True):
        assert told(one) == told(replayed)
        for name, fields in one.state.items():
            assert all(torch.equal(value, replayed.state[name][field]) for field, value in fields.items()), name


def test_a_run_may_go_on_within_the_steps_of_an_order(unsteady, tmp_path):
    """Of the whole run's order the last segment alone is followed, as after a checkpoint."""
    case = Case("async_1f1b", 3, 1, 2)
    unsteady(1)
    _, orders = train(case, tmp_path / "trace.json")
    _, part = train(case, tmp_path / "part.json", orders, several=DRAINS[1:])
    assert list(part) == [DRAINS[1].start]
    for whole, last in zip(orders[0], part[DRAINS[1].start], strict=True):
        earlier = DRAINS[1].start * case.microbatches
        assert [(i.op, i.microbatch - earlier) for i in whole if i.microbatch >= earlier] == [
            (i.op, i.microbatch) for i in last
        ]
