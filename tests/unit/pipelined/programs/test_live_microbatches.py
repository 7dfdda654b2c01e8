"""Activations alive in real training are as many as the schedule's price says."""

import pytest

from benchmarks.pipelines.footprint import count_activations
from pipelined.programs.costs import Costs
from pipelined.programs.pricing.price import price
from pipelined.programs.recording import record
from pipelined.schedules import find
from tests.numerics.arrangements import name
from tests.numerics.plain import Case
from tests.numerics.trained import on_every_rank

SCHEDULES = ("gpipe", "one_f_one_b", "chimera", "zb_h1", "zb_v", "dualpipe", "dualpipe_v")
CASES = [Case(schedule, 4, 1, microbatches) for schedule in SCHEDULES for microbatches in (4, 9)]
REST = [Case(schedule, 2, 1, microbatches) for schedule in SCHEDULES for microbatches in (1, 2, 3, 5)]
REST += [Case(schedule, 4, 1, microbatches) for schedule in SCHEDULES for microbatches in (1, 3)]
CASES += [Case("chimera", 4, 1, 9, pipes=4), Case("chimera", 4, 2, 5), Case("chimera", 4, 1, 8, recompute=True)]
CASES += [Case("chimera", 4, 1, 8, scale="forward-doubling"), Case("chimera", 4, 1, 4, scale="backward-halving")]


def peaks(case):
    """The most microbatches that were ever alive on each rank in two steps of training."""

    async def two_steps(trainer, _):
        kept = count_activations(trainer)
        for step in range(2):
            await trainer.step(step)
            assert not kept.alive
        return kept.peak_microbatches

    return on_every_rank(case, two_steps)


def priced(case):
    """What the schedule's price says, a worker of each group."""
    timeline = price(record(find(case.schedule), case.plan.shape), Costs())
    return [peak * case.parts for peak in timeline.peak_activations] * case.width


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("case", [*CASES, *(pytest.param(case, marks=pytest.mark.full) for case in REST)], ids=name)
def test_as_many_microbatches_are_alive_as_the_price_says(case):
    assert peaks(case) == priced(case)
