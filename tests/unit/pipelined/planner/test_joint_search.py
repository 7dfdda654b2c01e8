"""The search over teams and their layouts as well, against simulating every layout of every plan."""

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest

from collectives import Links
from pipelined.measurement.measured_costs import FIRST_INPUT, MeasuredCosts
from pipelined.planner import SearchRequest, StatedCosts, search
from pipelined.planner.bounds import least_seconds
from pipelined.planner.candidate_queue import LayoutQueue, with_updates
from pipelined.planner.candidates import AUTO, Candidate, candidates
from pipelined.planner.planner_model import LayoutSizes, StageMoves
from pipelined.planner.recorded_programs import RecordedPrograms
from pipelined.programs.partition import partition
from pipelined.programs.plan import Plan
from pipelined.sharding.factors import Factors
from pipelined.sharding.search.chain import chain_of
from pipelined.sharding.search.matmul import factorizations
from pipelined.sharding.search.network import Network
from pipelined.sharding.search.team_operator import LayerCosts
from pipelined.sharding.search.teams import TeamChain
from pipelined.simulation import Machine, Parameters, StageCosts, Workload
from tests.unit.pipelined.planner.toys import Toy

WIDTHS = [(16, 16), (48, 48), (8, 8)]
SLOW = Machine(Links(alpha=0.05, beta=2e-4, gamma=1e-4))
FREE = LayerCosts()
OPS = {"F": 1.0, "B": 2.1, "I": 1.0, "W": 1.2, "U": 0.3}
"""Measured seconds of a layer."""


@dataclass(frozen=True)
class TwoLayers(Toy):
    """Two multiplications, each a layer, on a batch of two sequences of ten tokens."""

    layers: int = 2
    batch: int = 2

    def chain(self, plan, machine):
        tokens = plan.rows * self.sequence
        network = Network(machine.sum_links)
        return TeamChain(
            chain=chain_of(tokens, WIDTHS),
            ranks=plan.tensor,
            network=network,
            node=machine.node,
            kinds=("layer 0", "layer 1"),
        )

    def every_layout(self, plan):
        factors = [f for f in factorizations(plan.tensor) if f.rows <= plan.rows]
        return [written(layout) for layout in product(factors, repeat=2)]

    def divides(self, plan):
        return False

    def build_split(self, plan):
        raise NotImplementedError("this model is planned and never built")

    def can_split(self, plan):
        return bool(self.every_layout(plan))

    def in_next_zero_state(self, plan):
        return None

    def layouts(self, plan, machine):
        chain = self.chain(plan, machine)
        chain = replace(chain, chain=replace(chain.chain, operators=limited(chain.chain.operators, plan.rows)))
        costs = [self.by_stage(plan, chain.costs(layout)) for layout in chain.front]
        moves = [[(stage.forward + stage.backward, stage.update) for stage in stages] for stages in costs]
        return [written(layout) for layout in chain.front], np.array(moves).reshape(-1, plan.depth, 2)

    def team_workload(self, plan, machine):
        if not plan.layout:
            costs = [FREE] * plan.depth
        else:
            costs = self.by_stage(plan, self.chain(plan, machine).costs(read(plan.layout)))
        alone = super().workload(replace(plan, tensor=1, layout=""))
        numbers = [sum(n for n, _ in row) for row in self.numbers(plan)]
        stages = [
            replace(stage, activation_bytes=round(stage.activation_bytes / plan.tensor + 4 * cost.kept))
            for stage, cost in zip(alone.stages, costs, strict=True)
        ]
        elements = [round(cost.numbers) or number // plan.tensor for cost, number in zip(costs, numbers, strict=True)]
        moves = [StageMoves(cost.forward, cost.backward, cost.update) for cost in costs]
        return Workload(stages, [Parameters((stage,), number) for stage, number in enumerate(elements)]), moves

    def numbers(self, plan):
        sizes = [WIDTHS[at][1] * WIDTHS[at + 1][0] for at in range(2)]
        return [[(sizes[layer], layer) for layer in part] for part in partition(self.layer_costs, plan.depth)]

    def by_stage(self, plan, costs):
        parts = partition(self.layer_costs, plan.depth)
        return [LayerCosts(*map(sum, zip(*(costs[f"layer {at}"] for at in part), strict=True))) for part in parts]

    def workload(self, plan):
        workload, parts = super().workload(plan), self.numbers(plan)
        return replace(workload, parameters=[Parameters((s,), sum(n for n, _ in row)) for s, row in enumerate(parts)])


def limited(operators, rows):
    return [replace(operator, sequences=rows) for operator in operators]


def written(layout):
    return ",".join(".".join(map(str, f)) for f in layout)


def read(text):
    return tuple(Factors(*map(int, f.split("."))) for f in text.split(","))


def request(ranks, machine=SLOW, limit=float("inf"), times=1.0, **fixed):
    toy = TwoLayers(fixed={"tensor": AUTO, **fixed})
    links = replace(machine.near, **{name: times * getattr(machine.near, name) for name in ("alpha", "beta", "gamma")})
    costs = StatedCosts(toy.layer_costs, toy.sequence, 10.0 / times, 0.25 * times)
    return SearchRequest(toy, costs, replace(machine, near=links), ranks, limit)


def everything(problem):
    """Every layout of every plan, simulated."""
    toy, outcomes = problem.model, []
    for candidate in candidates(problem.ranks, toy.batch, toy.layers, toy.fixed):
        plan = candidate.plan
        splits = toy.every_layout(plan) if plan.tensor > 1 else [""]
        outcomes += [problem.simulate(replace(candidate, plan=replace(plan, layout=split))) for split in splits]
    return sorted((o for o in outcomes if o.memory <= problem.memory_limit), key=lambda outcome: outcome.order)


@pytest.mark.parametrize(
    ("ranks", "limit", "links", "fixed"),
    [
        (2, float("inf"), SLOW.near, {"recompute": False}),
        (2, 12_000, SLOW.near, {"recompute": False}),
        (2, 12_000, SLOW.near, {}),
        (4, float("inf"), Links(alpha=1e-3, beta=1e-6, gamma=1e-6), {"recompute": False}),
        (4, 8_000, Links(alpha=1e-3, beta=1e-4, gamma=0.0), {"recompute": False}),
    ],
)
def test_the_best_is_that_of_simulating_every_layout_of_every_plan(ranks, limit, links, fixed):
    problem = request(ranks, replace(SLOW, near=links), limit, **fixed)
    result, truth = search(problem), everything(problem)
    assert result.chosen.step_s == pytest.approx(truth[0].step_s, rel=1e-12)
    assert result.simulated < len(truth)


@pytest.mark.parametrize("links", [SLOW.near, Links(alpha=1e-3, beta=1e-6, gamma=1e-6)])
def test_measured_costs_with_dear_members_and_uneven_halves_lead_to_the_best_as_well(links):
    toy = TwoLayers(fixed={"tensor": AUTO, "recompute": False}, batch=4)
    rank, member = (
        {(op, 0 if op == "U" else 1): dear(seconds, by) for op, seconds in OPS.items()} for by in (1.0, 1.2)
    )
    costs = MeasuredCosts(toy.layer_costs, {**rank, (FIRST_INPUT, 1): dear(0.1, 1.0)}, member=member)
    problem = SearchRequest(toy, costs, Machine(links), 4)
    result, truth = search(problem), everything(problem)
    assert result.chosen.step_s == truth[0].step_s
    assert result.simulated < len(truth) / 10


def dear(seconds, by):
    """Seconds by kind of layer, the last of which is dearer."""
    return {None: 0.05 * by, ("first", 1.0): seconds * by, ("last", 1.0): 1.25 * seconds * by}


def test_no_layout_waits_with_less_than_its_plan_takes_with_free_moves_and_the_lighter_plan_may():
    open_plan = Candidate(Plan("gpipe", 1, 1, 2, 1, tensor=2))
    front = LayoutQueue(
        open_plan,
        ["a", "b"],
        bounds=np.array([1.0, 1.2]),
        tighter_bounds=np.array([1.5, 1.5]),
        rank_bytes=np.array([8.0, 9.0]),
        memory_limit=8.0,
    )
    assert (front.bound, front.bound_of_too_big, front.too_big) == (1.5, 1.2, 1)
    assert front.take().plan.layout == "a" and front.bound == float("inf")


def test_where_ranks_share_cores_a_layout_waits_with_the_share_that_its_moves_take_of_them():
    problem = request(4, replace(SLOW, cores=2), recompute=False)
    toy, shares = problem.model, []
    for candidate in candidates(4, toy.batch, toy.layers, toy.fixed):
        plan = candidate.plan
        if plan.tensor > 1 and toy.can_split(plan):
            layouts, moves = toy.layouts(plan, problem.machine)
            split = RecordedPrograms().splits_backward(plan)
            workload = problem.workload(plan)
            bounds = least_seconds(candidate, workload, problem.machine, "ring", moves=moves, split_backward=split)
            for layout, bound in zip(layouts, bounds.tolist(), strict=True):
                step_s = problem.simulate(replace(candidate, plan=replace(plan, layout=layout))).step_s
                shares.append(bound / step_s)
    assert max(shares) <= 1 + 1e-9 and sum(shares) / len(shares) > 0.9


def test_a_layout_with_twice_the_parameters_waits_with_twice_the_update():
    workload = Workload([StageCosts(update=0.5)], [Parameters((0,), 10)])
    sizes = LayoutSizes(np.array([[10.0], [20.0]]), np.zeros((2, 1)), np.zeros((2, 1)))
    assert with_updates(np.zeros((2, 1, 2)), workload, sizes)[:, 0, 1].tolist() == [0.0, 0.5]


def test_more_memory_is_never_dearer():
    limits = [6_000, 7_000, 10_000, float("inf")]
    steps = [search(request(4, limit=limit)).chosen.step_s for limit in limits]
    assert steps == sorted(steps, reverse=True) and steps[0] > steps[-1]


def test_prices_times_a_number_give_the_same_plan():
    once, thrice = (search(request(4, times=times)).chosen for times in (1.0, 3.0))
    assert thrice.candidate == once.candidate
    assert thrice.step_s == pytest.approx(3 * once.step_s)


def test_teams_are_tried_only_where_they_are_requested():
    plans = [c.plan for c in candidates(4, 2, 2, {})]
    assert {plan.tensor for plan in plans} == {1}
    assert {c.plan.tensor for c in candidates(4, 2, 2, {"tensor": AUTO})} == {1, 2, 4}
    fixed = list(candidates(4, 2, 2, {"tensor": 2, "layout": "1.2.1,1.1.2"}))
    assert {(c.plan.tensor, c.plan.layout, c.plan.world_size) for c in fixed} == {(2, "1.2.1,1.1.2", 4)}
