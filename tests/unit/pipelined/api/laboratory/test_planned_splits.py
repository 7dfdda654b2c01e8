"""The planner over teams of a row of layers: against simulating every layout of every plan, and beside what trains."""

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn

import pipelined as pp
from collectives import Links
from pipelined.api.laboratory.planned_splits import PlannedSplits
from pipelined.api.model.sequential import LayeredModel
from pipelined.planner import SearchRequest, Stated, search
from pipelined.planner.candidates import candidates
from pipelined.sharding.search.matmul import factorizations
from pipelined.simulation.machine import Machine
from pipelined.training.job import Numerics

AUTO, ROWS, WIDTHS = "auto", 4, (12, 16, 8)
STEP = torch.linspace(-1, 1, ROWS * WIDTHS[0]).view(ROWS, -1), torch.arange(ROWS)
LAYERS = [lambda: nn.Linear(WIDTHS[0], WIDTHS[1]), lambda: nn.Linear(WIDTHS[1], WIDTHS[2])]
SLOW = Links(alpha=1e-6, beta=2e-8, gamma=0.0)
SGD = partial(torch.optim.SGD, lr=0.1)


def planned_splits(layers=LAYERS, step=STEP, optimizer=torch.optim.AdamW, **fixed):
    model = LayeredModel(pp.Sequential(layers), nn.functional.cross_entropy, 0, step[0])
    return PlannedSplits(model, step, optimizer, Numerics(), {"tensor": AUTO, "recompute": False, **fixed})


def request(ranks, links=SLOW, limit=float("inf"), times=1.0, model=None, **fixed):
    model = model or planned_splits(**fixed)
    links = replace(links, **{name: times * getattr(links, name) for name in ("alpha", "beta", "gamma")})
    costs = Stated(model.operations, 1, 1e8 / times, 1e-6 * times)
    return SearchRequest(model, costs, Machine(links), ranks, limit)


def everything(asked):
    """Every layout of every plan, simulated."""
    model, found = asked.model, []
    for candidate in candidates(asked.ranks, model.batch, len(model.layer_costs), model.fixed):
        plan = candidate.plan
        factors = [f for f in factorizations(plan.tensor) if f.rows <= plan.rows]
        texts = [
            ",".join(f"{at}={'.'.join(map(str, f))}" for at, f in enumerate(each))
            for each in product(factors, repeat=2)
        ]
        every = [replace(plan, split=text) for text in texts] if plan.tensor > 1 else [plan]
        found += [
            asked.simulate(replace(candidate, plan=each)) for each in every if plan.tensor == 1 or model.splits(each)
        ]
    return sorted((o for o in found if o.memory <= asked.memory_limit), key=lambda outcome: outcome.order)


FAST = Links(alpha=1e-8, beta=1e-10, gamma=0.0)


@pytest.mark.parametrize(
    ("ranks", "limit", "links", "fixed"),
    [
        (2, float("inf"), FAST, {}),
        (2, 4_500, FAST, {}),
        (2, 4_500, SLOW, {}),
        (4, float("inf"), FAST, {"schedule": "one_f_one_b"}),
        (4, 2_500, FAST, {"schedule": "one_f_one_b"}),
        (4, 3_500, SLOW, {"schedule": "gpipe"}),
    ],
)
def test_the_best_is_that_of_simulating_every_layout_of_every_plan(ranks, limit, links, fixed):
    asked = request(ranks, links, limit, **fixed)
    result, truth = search(asked), everything(asked)
    assert result.chosen.step_s == pytest.approx(truth[0].step_s, rel=1e-12)
    assert result.simulated < len(truth)
