"""What ranks split of weights in a plan of teams: the search takes it where memory asks, and layouts name it."""

from dataclasses import replace
from functools import cache
from itertools import product

import pytest

from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.sharded.layouts import OPERATORS, STATES, states_of
from apps.gpt2.config import GPT2Flags
from apps.gpt2.job import resolve
from apps.gpt2.planning.model_to_plan import GPT2ToPlan
from apps.gpt2.planning.team import split_text
from apps.gpt2.planning.team_costs import team_layout_text
from collectives import Links
from pipelined.errors import UsageError
from pipelined.planner.bounds import least_bytes, least_bytes_of_layouts
from pipelined.planner.candidate_queue import CandidateQueue, sizes_of_layouts
from pipelined.planner.candidates import Candidate, candidates
from pipelined.planner.memory_limit import sizes_that_fit
from pipelined.planner.model_costs import StatedCosts, priced
from pipelined.planner.plan_search import SearchRequest, search
from pipelined.programs.instructions import UPDATE
from pipelined.programs.plan import Plan
from pipelined.sharding.search.matmul import factorizations
from pipelined.simulation import Machine

RANKS = 2
NAMES = ("data", "zero1", "zero3")


class DearUpdates(StatedCosts):
    """Costs with updates that take longer than what a division of them moves."""

    def seconds(self, op, layers, rows):
        return 1e-3 * len(layers) if op == UPDATE else super().seconds(op, layers, rows)


def request(limit=float("inf"), costs=StatedCosts, **flags):
    config = GPT2Flags(tensor="auto", schedule="gpipe", depth=1, microbatch=2, recompute=True, **flags)
    model = GPT2ToPlan(config, ModelConfig(1, 16, 4, 32, 8, 0.0), sequence=8, batch=4)
    stated = costs(model.layer_costs, 8, flops=1e9)
    return SearchRequest(model, stated, Machine(Links(1e-5, 1e-8)), RANKS, limit)


@cache
def everything(costs=StatedCosts):
    """Seconds and bytes of every plan, with every layout in every state."""
    asked, found = request(costs=costs), []
    for candidate in candidates(RANKS, 4, 3, asked.model.fixed):
        plans = [candidate.plan]
        if candidate.plan.tensor > 1:
            split = product(product(factorizations(RANKS), repeat=len(OPERATORS)), ("none", *STATES))
            texts = [team_layout_text(layout, dict.fromkeys(OPERATORS, state)) for layout, state in split]
            plans = [plan for text in texts if asked.model.can_split(plan := replace(candidate.plan, layout=text))]
        outcomes = [asked.simulate(replace(candidate, plan=plan)) for plan in plans]
        found += [(outcome.step_s, outcome.memory) for outcome in outcomes]
    return found


@pytest.mark.parametrize("costs", [StatedCosts, DearUpdates])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.4, 1.0])
def test_the_search_finds_what_is_fastest_of_all_layouts_in_all_states_that_fit(share, costs):
    every = sorted({memory for _, memory in everything(costs)})
    limit = every[round(share * (len(every) - 1))]
    expected = min(seconds for seconds, memory in everything(costs) if memory <= limit)
    assert search(request(limit, costs)).chosen.step_s == pytest.approx(expected, rel=1e-12)


def test_the_least_memory_is_that_of_weights_in_parts_and_without_a_limit_they_are_whole():
    least = min(memory for _, memory in everything())
    split = search(request(least)).chosen.candidate.plan.layout
    assert "zero3" in states_of(split).values()
    assert all("+" not in one.candidate.plan.layout for one in search(request()).best)


def test_a_plan_with_states_is_tried_with_divided_updates():
    model, plans = request().model, [Plan("gpipe", 1, 1, 2, 2, tensor=2, layout=split_text(name, 2)) for name in NAMES]
    assert [model.divides(plan) for plan in plans] == [False, True, True]
    assert [model.build_split(plan).shards_weights for plan in plans] == [False, False, True]


def test_what_is_measured_fits_where_a_lighter_state_of_teams_does():
    """A measurement was refused at a limit for which the search finds a plan: its sizes were those without a state."""
    config = GPT2Flags(tensor=2, schedule="gpipe", depth=1)
    model = GPT2ToPlan(config, ModelConfig(1, 16, 4, 32, 8, 0.0), sequence=8, batch=8)
    asked = SearchRequest(model, StatedCosts(model.layer_costs, 8, flops=1e9), Machine(Links(1e-5, 1e-8)), 4)
    limit = 0.45 * search(asked).chosen.memory
    assert "+zero1" in search(replace(asked, memory_limit=limit)).chosen.candidate.plan.layout
    assert sizes_that_fit(model, 4, limit) == [1]
    with pytest.raises(UsageError, match=r"\(limit: 20 KiB a rank, the least that one takes: 34.45 KiB or more\)"):
        sizes_that_fit(model, 4, 20 << 10)


def test_sums_that_cannot_be_scattered_leave_weights_whole():
    least = min(memory for _, memory in everything())
    with pytest.raises(UsageError, match="no plan fits the memory"):
        search(request(least, all_reduce="recursive_doubling"))


@pytest.mark.parametrize("state", ["", "+zero1", "+zero2", "+zero3"])
@pytest.mark.parametrize(("schedule", "depth", "tied"), [("gpipe", 1, True), ("gpipe", 3, False), ("chimera", 2, True)])
def test_what_layouts_hold_is_found_at_once_as_it_is_of_each(state, schedule, depth, tied):
    model = GPT2ToPlan(GPT2Flags(tensor="auto"), ModelConfig(2, 16, 4, 32, 8, 0.0, tied=tied), sequence=8, batch=16)
    machine, costs = Machine(Links(1e-5, 1e-8)), StatedCosts(model.layer_costs, 8, flops=1e9)
    plan = Plan(schedule, depth, 2, 4, 2, tensor=4, layout=state)
    splits, _ = model.layouts(plan, machine)
    each = [Candidate(replace(plan, layout=split)) for split in splits]
    alone = [least_bytes(one, priced(model, one.plan, costs, machine)) for one in each]
    workload = priced(model, plan, costs, machine)
    sizes = sizes_of_layouts(model, Candidate(plan), workload, machine)
    held = least_bytes_of_layouts(Candidate(plan), workload, sizes)
    assert held.tolist() == pytest.approx(alone, rel=2e-9)
    assert all(held <= alone) and len(set(alone)) > 1


def test_an_optimizers_state_is_divided_by_the_ranks_of_the_plan_itself():
    """Each stage is on two ranks of the pipelines, and on four of those in both directions."""
    pipelines, both = (Candidate(Plan(name, 2, 2, 2, 2)) for name in ("gpipe", "chimera"))
    asked = request(shard_optimizer=True)
    queue = CandidateQueue(replace(asked, memory_limit=least_bytes(both, asked.workload(both.plan))))
    queue.add(pipelines)
    queue.add(both)
    assert both in [candidate for _, _, candidate in queue.waiting]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_autocast_is_planned_with_two_bytes_of_what_products_take_and_with_cast_matrices(dtype):
    """Two stages of GPipe's four blocks: no number of the state is smaller, as parameters stay in float32."""
    flags = {"schedule": "gpipe", "depth": 2, "batch": 4, "microbatch": 2, "vocab": 256, "dropout": 0.0}
    plain, cast = (resolve(GPT2Flags(**flags, dtype=each), 2) for each in ("float32", dtype))
    tokens, model = 2 * plain.sequence, plain.model
    for worker in range(2):
        blocks = model.layers // 2
        less = 2 * 14 * blocks * tokens * model.d_model - 2 * 12 * blocks * model.d_model**2
        if worker:
            less += 2 * tokens * model.d_model - 2 * model.vocab * model.d_model
        assert plain.planned_memory(worker) - cast.planned_memory(worker) == 2 * less
