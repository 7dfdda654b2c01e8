"""The planner over teams of a row of layers: against simulating every layout of every plan, and beside what trains."""

from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

import pipelined as pp
from collectives import Links
from pipelined.api.planning.split_row_model import SplitRowModel
from pipelined.planner import SearchRequest, StatedCosts, search
from pipelined.planner.bounds import least_bytes, least_bytes_of_layouts
from pipelined.planner.candidate_queue import sizes_of_layouts
from pipelined.planner.candidates import Candidate, candidates
from pipelined.sharding.search.matmul import factorizations
from pipelined.simulation import Machine
from pipelined.training.job.numerics import Numerics
from pipelined.training.models.sequential import LayeredModel

AUTO, ROWS, WIDTHS = "auto", 4, (12, 16, 8)
STEP = torch.linspace(-1, 1, ROWS * WIDTHS[0]).view(ROWS, -1), torch.arange(ROWS)
LAYERS = [lambda: nn.Linear(WIDTHS[0], WIDTHS[1]), lambda: nn.Linear(WIDTHS[1], WIDTHS[2])]
SLOW = Links(alpha=1e-6, beta=2e-8, gamma=0.0)
SGD = partial(torch.optim.SGD, lr=0.1)


def planned_splits(layers=LAYERS, step=STEP, optimizer=torch.optim.AdamW, **fixed):
    model = LayeredModel(pp.Sequential(layers), nn.functional.cross_entropy, 0, step[0])
    return SplitRowModel(model, step, optimizer, Numerics(), {"tensor": AUTO, "recompute": False, **fixed})


def request(ranks, links=SLOW, limit=float("inf"), times=1.0, model=None, **fixed):
    model = model or planned_splits(**fixed)
    links = replace(links, **{name: times * getattr(links, name) for name in ("alpha", "beta", "gamma")})
    costs = StatedCosts(model.operations, 1, 1e8 / times, 1e-6 * times)
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
        every = [replace(plan, layout=text) for text in texts] if plan.tensor > 1 else [plan]
        found += [
            asked.simulate(replace(candidate, plan=each)) for each in every if plan.tensor == 1 or model.can_split(each)
        ]
    return sorted((o for o in found if o.memory <= asked.memory_limit), key=lambda outcome: outcome.order)


FAST = Links(alpha=1e-8, beta=1e-10, gamma=0.0)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("ranks", "limit", "links", "fixed"),
    [
        (2, float("inf"), FAST, {}),
        (2, 4_500, SLOW, {}),
        (4, 1_800, FAST, {"schedule": "one_f_one_b"}),
        (4, 3_500, SLOW, {"schedule": "gpipe"}),
    ],
)
def test_the_best_is_that_of_simulating_every_layout_of_every_plan(ranks, limit, links, fixed):
    asked = request(ranks, links, limit, **fixed)
    result, truth = search(asked), everything(asked)
    assert result.chosen.step_s == pytest.approx(truth[0].step_s, rel=1e-12)
    assert result.simulated < len(truth)


@pytest.mark.parametrize(
    ("plan", "optimizer"),
    [
        (pp.Plan("gpipe", 1, 1, 4, 1, tensor=4), torch.optim.AdamW),
        (pp.Plan("one_f_one_b", 2, 1, 2, 2, tensor=2), SGD),
        (pp.Plan("chimera", 2, 1, 2, 2, tensor=2), torch.optim.Adagrad),
    ],
)
def test_a_layout_moves_what_its_team_moves_and_holds_no_less_than_its_bounds(plan, optimizer):
    model, machine = planned_splits(optimizer=optimizer), Machine(SLOW)
    even, _ = model.team_workload(plan, machine)
    texts, moves = model.layouts(plan, machine)
    sizes = sizes_of_layouts(model, Candidate(plan), even, machine)
    bounds = least_bytes_of_layouts(Candidate(plan), even, sizes)
    for text, moved, bound in zip(texts, moves, bounds, strict=True):
        workload, each = model.team_workload(replace(plan, layout=text), machine)
        assert moved == pytest.approx(np.array([(one.forward + one.backward, one.update) for one in each]))
        held, least = (least_bytes(Candidate(plan), sizes) for sizes in (workload, even))
        assert least <= bound <= held and bound > 0.85 * held


def test_more_memory_is_never_dearer():
    steps = [search(request(4, FAST, limit)).chosen.step_s for limit in (1_800, 2_300, float("inf"))]
    assert steps == sorted(steps, reverse=True) and steps[0] > steps[-1]


def test_prices_times_a_number_give_the_same_plan():
    once, thrice = (search(request(2, limit=4_500, times=times)).chosen for times in (1.0, 3.0))
    assert once.candidate.plan.tensor == 2
    assert thrice.candidate == once.candidate
    assert thrice.step_s == pytest.approx(3 * once.step_s)


def test_what_is_given_is_kept():
    (whole,) = {one.candidate.plan.layout for one in search(request(2, tensor=2, layout="data")).best}
    assert whole == "data"
    assert {one.candidate.plan.tensor for one in search(request(4, tensor=2, schedule="gpipe")).best} == {2}


def looped(microbatches):
    """The losses of a plain loop in float64."""
    torch.manual_seed(0)
    model = nn.Sequential(*[build() for build in LAYERS]).double()
    optimizer, losses = SGD(model.parameters()), []
    for _ in range(2):
        optimizer.zero_grad()
        pairs = zip(*(each.chunk(microbatches) for each in (STEP[0].double(), STEP[1])), strict=True)
        parts = [nn.functional.cross_entropy(model(x), y) / microbatches for x, y in pairs]
        sum(parts).backward()
        optimizer.step()
        losses.append(sum(parts).item())
    return losses


@pytest.mark.parametrize(("limit", "fixed"), [(float("inf"), {"microbatches": 2}), (3_300, {"depth": 2, "width": 1})])
def test_a_plan_of_teams_trains_as_a_plain_loop_does_and_sends_what_was_planned(limit, fixed):
    settings = {"loss": nn.functional.cross_entropy, "optimizer": SGD, "dtype": torch.float64}
    links = {name: getattr(FAST, name) for name in ("alpha", "beta", "gamma")}
    found = pp.plan(
        LAYERS, STEP, ranks=4, tensor=AUTO, memory_limit=limit, costs={"flops": 1e8}, links=links, **settings, **fixed
    )
    plan = found.plan
    assert plan.tensor > 1 and max(found.memory) <= limit
    done = pp.train(LAYERS, [STEP] * 2, plan=found, **settings)
    assert done.losses == pytest.approx(looped(plan.total_microbatches), rel=1e-12)
    with pp.Trainer(LAYERS, found, example=STEP[0][: plan.rows], **settings) as trainer:
        nbytes = trainer.planned_bytes(STEP)
        assert trainer.step(STEP).nbytes == nbytes
    if (plan.depth, plan.width) == (1, 1):
        moved = [(1 if each.phase == "update" else plan.microbatches) * each.nbytes for each in found.plan_file.moves]
        assert nbytes == plan.tensor * sum(moved)


def test_train_finds_the_ranks_of_a_worker():
    settings = {"loss": nn.functional.cross_entropy, "optimizer": SGD, "dtype": torch.float64}
    done = pp.train(LAYERS, [STEP] * 2, depth=1, width=1, microbatches=2, tensor=AUTO, layout=AUTO, **settings)
    assert done.losses == pytest.approx(looped(2), rel=1e-12)


def test_another_layout_than_the_plan_has_is_refused():
    found = pp.plan(LAYERS, STEP, ranks=2, tensor=2, layout="data", microbatches=1, width=1, costs={"flops": 1e8})
    settings = {"loss": nn.functional.cross_entropy, "optimizer": SGD}
    with pytest.raises(pp.UsageError, match=r"another layout \(layout: megatron, the plan's: data\); leave layout out"):
        pp.Trainer(LAYERS, found.plan, layout="megatron", **settings)
    with pytest.raises(pp.UsageError, match=r"plan= sets tensor \(given too: tensor, layout\)"):
        pp.train(LAYERS, [STEP], plan=found, tensor=2, layout="megatron", **settings)


class Counting(nn.Module):
    """Writes a buffer, so that no team splits it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count.add_(1)
        return x


class Writing(nn.Linear):
    """Writes a parameter, so that no team splits it."""

    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(0.5)
        return super().forward(x)


class Drawing(nn.Module):
    """Draws random numbers for its own rows, so that no team splits it."""

    def forward(self, x):
        return nn.functional.dropout(x, 0.5, self.training)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Counting, "which 2 ranks split, writes its parameters or buffers"),
        (lambda: Writing(8, 8), "which 2 ranks split, writes its parameters or buffers"),
        (Drawing, "draws random numbers for its own rows alone"),
    ],
)
def test_a_model_that_no_team_can_split_is_planned_with_workers_of_one_rank(layer, message):
    layers = [*LAYERS, layer]
    assert search(request(2, model=planned_splits(layers))).chosen.candidate.plan.tensor == 1
    with pytest.raises(pp.UsageError, match=message):
        search(request(2, model=planned_splits(layers, tensor=2)))


def test_a_loss_with_a_count_is_planned_with_workers_of_one_rank():
    counted = planned_splits()
    object.__setattr__(counted.model, "_loss", lambda y, targets: (y.sum(), 3))
    assert search(request(2, model=counted)).chosen.candidate.plan.tensor == 1


def test_teams_of_more_ranks_than_any_layout_takes_are_refused():
    with pytest.raises(pp.UsageError, match=r"no plan's teams can split the model \(tensor: 4, layout: data\)"):
        search(request(4, tensor=4, layout="data", microbatches=2))
