"""What a team is said to move and to hold, beside the record of the code that trains."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.sharded.gpt2 import ShardedGPT2
from apps.common.lm.sharded.layouts import factors_of
from apps.gpt2.config import GPT2Flags
from apps.gpt2.planning.model_to_plan import GPT2ToPlan
from apps.gpt2.planning.team_costs import BLOCK, HEAD, team_chain
from apps.gpt2.planning.team_workload import rank_workload
from collectives import Links
from collectives.cost_model import MemoryCosts
from pipelined.planner.model_costs import StatedCosts, priced
from pipelined.planner.predicted_moves import predicted_moves
from pipelined.programs.instructions import UPDATE
from pipelined.programs.plan import Plan
from pipelined.sharding.operators.stage_record import piece, record
from pipelined.sharding.operators.tape import sum_path
from pipelined.sharding.operators.verbs import Value
from pipelined.sharding.search.matmul import ROWS, RingPasses, factorizations
from pipelined.sharding.search.network import GroupShape, Network
from pipelined.sharding.search.team_operator import EMBEDDING, MATRIX, LayerCosts
from pipelined.simulation import Machine
from pipelined.training.stages.team_stage import input_half

B, T = 8, 16
CONFIG = ModelConfig(layers=2, d_model=64, heads=8, vocab=128, positions=T, dropout=0.0)
LINKS = Links(1e-3, 1e-6, 1e-7)
SHARED = replace(LINKS, memory=MemoryCosts((1e-3, 1e-6), (7e-3, 2e-6), (3e-3, 5e-6), (11e-3, 3e-6)))
LAYOUTS = {
    "data": 4,
    "megatron": 4,
    "c_attn=2.2.1,attn.c_proj=1.2.2,c_fc=4.1.1,mlp.c_proj=2.1.2,wte=2.1.2": 4,
    "c_attn=2.2.2,attn.c_proj=4.2.1,c_fc=1.4.2,mlp.c_proj=8.1.1,wte=2.2.2": 8,
}


def recorded(text, ranks, state="none", rank=0, links=LINKS):
    """What a rank does for a microbatch, the seconds that it moves weights and gradients once a step, its parameters.

    With zero2 the record is that of a microbatch after the first one.
    """
    model = ShardedGPT2(CONFIG, factors_of(text, ranks), state)
    layouts, shards, gathered = model.parameters(), model.input_shards((B, T)), {}
    pieces = {name: piece(rank, each, torch.float32) for name, each in layouts.items()}
    ids = Value(piece(rank, shards, torch.int64, trained=False), shards, False)

    async def stage(tape):
        return await model.score(tape, await model.run_layers(tape, range(model.layers), ids, pieces), ids)

    first, found = (record(rank, stage, back=input_half, gathered=gathered) for _ in range(2))
    once = first.forward.seconds(links, 1e30) - found.forward.seconds(links, 1e30)
    sums = sum(sum_path(each).seconds(links, 4) for each in layouts.values())
    return found, once + sums, sum(each.numel() for each in pieces.values())


def told(text, ranks, state="none", links=LINKS):
    """The costs of a member in closed form, of all layers together."""
    team = team_chain(CONFIG, ranks, B, T, Machine(links), itemsize=4, states=[state] * 5)
    costs = team.costs(tuple(factors_of(text, ranks).values()))
    every = [*[costs[BLOCK]] * CONFIG.layers, costs[HEAD], costs[EMBEDDING], costs[MATRIX]]
    return LayerCosts(*(sum(column) for column in zip(*every, strict=True)))


MIXED = list(LAYOUTS)[2]
LOSS = RingPasses("forward", ROWS, 1, 2, 1, all_reduces=1)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    ("text", "state"),
    [*((text, "none") for text in LAYOUTS), ("data", "zero2"), (MIXED, "zero2"), ("data", "zero3"), ("summa", "zero3")],
)
@pytest.mark.parametrize("links", [LINKS, SHARED], ids=["messages", "memory"])
def test_moves_and_parameters_are_those_that_are_trained(text, state, links):
    ranks = LAYOUTS.get(text, 4)
    found, (record, update, numbers) = told(text, ranks, state, links), recorded(text, ranks, state, links=links)
    loss = Network(links).passes(GroupShape(1, factors_of(text, ranks)["wte"][0]), LOSS)
    forward, back, weights = (each.seconds(links, 1e30) for each in (record.forward, record.backward, record.weights))
    assert found.numbers == numbers
    assert found.update == pytest.approx(update, rel=1e-5)
    assert found.weights == pytest.approx(weights, rel=1e-5)
    assert found.backward == pytest.approx(back + weights, rel=1e-5)
    assert found.forward == pytest.approx(forward + loss, rel=1e-4), "the record ends before the losses are added up"


@pytest.mark.parametrize("text", ["megatron", MIXED])
def test_a_plan_predicts_the_bytes_of_the_busiest_member(text):
    """The record ends before the losses are added up."""
    ranks = LAYOUTS[text]
    plan = Plan("gpipe", 1, 1, B, 1, tensor=ranks, layout=text)
    found = predicted_moves(GPT2ToPlan(GPT2Flags(), CONFIG, T, B), plan, Machine(LINKS))
    records = [recorded(text, ranks, rank=rank)[0] for rank in range(ranks)]
    rows = factors_of(text, ranks)["wte"][0]
    loss = 4 * 2 * (rows - 1) / rows
    busiest = max(each.forward.nbytes for each in records), max(each.backward.nbytes for each in records)
    assert [each.nbytes for each in found[:2]] == [busiest[0] + loss, busiest[1]]
    assert [each.seconds for each in found] == pytest.approx(list(told(text, ranks)[:3]))


@pytest.mark.parametrize("text", [*LAYOUTS, "zero3", "summa"])
def test_a_member_keeps_what_its_tape_keeps(text):
    """On the meta device attention saves its weights; on a CPU one number for each token and head."""
    ranks = LAYOUTS.get(text, 4)
    state = "none" if text in LAYOUTS else "zero3"
    plan = Plan("gpipe", 1, 1, B, 1, tensor=ranks, layout=text)
    (stage,) = rank_workload(CONFIG, plan, T).stages
    weights = 4 * B * T // ranks * CONFIG.heads * (T - 1) * CONFIG.layers
    assert 0.98 <= stage.activation_bytes / (recorded(text, ranks, state)[0].kept - weights) <= 1.05


def test_every_layout_of_a_front_is_beaten_by_no_other():
    """Of all layouts of two ranks each is in the front, or another costs no more in anything."""
    team = team_chain(CONFIG, 2, B, T, Machine(LINKS), itemsize=4)
    costs = {
        layout: np.array(list(team.costs(layout).values())).ravel() for layout in product(factorizations(2), repeat=5)
    }
    front = [costs[layout] for layout in team.front]
    assert 1 < len(front) < len(costs)
    for vector in costs.values():
        assert any((one <= vector * (1 + 1e-12)).all() for one in front)


def test_a_teams_computing_is_priced_as_a_member_of_one_takes_it():
    class Slower(StatedCosts):
        @property
        def member_costs(self):
            return replace(self, flops=self.flops / 3)

    model, machine = GPT2ToPlan(GPT2Flags(), CONFIG, T, B), Machine(LINKS)
    plan, costs = Plan("gpipe", 1, 1, 4, 2, tensor=2, layout="megatron"), Slower(model.layer_costs, T, 1e9)
    (moved,), (priced_,) = model.team_workload(plan, machine)[1], priced(model, plan, costs, machine).stages
    share = sum(model.layer_costs) * T * 4 / 2 / 1e9
    assert priced_.forward - moved.forward == pytest.approx(3 * share)
    assert priced_.backward - moved.backward == pytest.approx(2 * 3 * share)
    (alone,) = priced(model, Plan("gpipe", 1, 1, 4, 2), costs, machine).stages
    assert alone.forward == pytest.approx(2 * share)


@pytest.mark.parametrize(("layout", "least", "most"), [("data", 1.0, 1.0), ("megatron", 0.5, 0.51)])
def test_an_update_takes_longer_the_more_parameters_a_member_holds(layout, least, most):
    class Updating(StatedCosts):
        def seconds(self, op, layers, rows):
            return 1.0 if op == UPDATE else 0.0

    model, machine = GPT2ToPlan(GPT2Flags(), CONFIG, T, B), Machine(LINKS)
    plan = Plan("gpipe", 1, 1, 4, 2, tensor=2, layout=layout)
    (moved,), (priced_,) = (
        model.team_workload(plan, machine)[1],
        priced(model, plan, Updating([], T, 1.0), machine).stages,
    )
    assert least <= priced_.update - moved.update <= most
