"""What is counted as held is all that is held: to the byte what the closed form says, and able to exceed it."""

import asyncio
from dataclasses import replace
from functools import partial
from itertools import chain

import pytest
import torch
from torch import nn

import pipelined as pp
from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.sharded.gpt2 import ShardedGPT2
from apps.common.lm.sharded.layouts import factors_of, states_of
from apps.gpt2.planning.memory import activation_bytes, boundary_bytes, pending_bytes
from apps.gpt2.planning.team_workload import rank_workload
from apps.gpt2.planning.workload import WorkloadOptions
from benchmarks.harness.bound import state_bytes
from benchmarks.harness.timed_executor import TimedExecutor
from benchmarks.pipelines.footprint import CountedStage, CountedTeamStage, Kept, storages
from benchmarks.pipelines.footprint import state_bytes as counted_state
from benchmarks.pipelines.team_replay import recorded
from pipelined.aio.clock import RealClock
from pipelined.api.planning.layer_row_model import LayerRowModel
from pipelined.api.planning.team_sizes import TeamSizes
from pipelined.programs.partition import partition
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding import MeshGroups
from pipelined.training.job.numerics import Numerics
from pipelined.training.models.sequential import LayeredModel
from pipelined.training.models.split.split_row import SplitRow
from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.stages.stage import Stage
from pipelined.training.stages.team_stage import TeamStage
from transports.local import world

CONFIG = ModelConfig(layers=3, d_model=24, heads=3, vocab=50, positions=12, dropout=0.0)
ROWS, SEQUENCE = 2, 10
IDS = torch.arange(ROWS * SEQUENCE).view(ROWS, SEQUENCE)
TARGETS = IDS + 1


class Counted:
    """One stage of the model that is counted, and how to walk microbatches through it."""

    def __init__(self, layers, config=CONFIG, **recompute):
        model, top = GPT2(config), config.layers + 1
        self.first, self.last = 0 in layers, top in layers
        depth = 3 - self.first - self.last
        module = model.build(layers, torch.float32, "cpu", seed=1)
        self.parameters = dict(module.named_parameters())
        self.kept = Kept(storages(self.parameters.values()))
        inner = Stage(model, module, 0 if self.first else 1, depth, torch.device("cpu"), **recompute)
        self.stage = CountedStage(inner, self.kept)

    def forward(self, microbatch):
        x = IDS if self.first else torch.randn(ROWS, SEQUENCE, CONFIG.d_model)
        return self.stage.forward((0, microbatch), x, KeyedRandom(1, 0, microbatch), TARGETS if self.last else None)

    def backward(self, microbatch, verb="backward"):
        gradient = None if self.last else torch.randn(ROWS, SEQUENCE, CONFIG.d_model)
        targets = TARGETS if self.last else None
        getattr(self.stage, verb)((0, microbatch), gradient, 1.0, KeyedRandom(1, 0, microbatch), targets)


STAGES = [range(0, 1), range(1, 2), range(4, 5), range(0, 5)]
"""Each kind of layer alone, and all of them."""


@pytest.mark.parametrize("layers", STAGES, ids=str)
def test_a_live_microbatch_takes_what_the_closed_form_says(layers):
    counted = Counted(layers)
    counted.forward(0)
    assert counted.kept.peak_bytes == activation_bytes(CONFIG, layers, ROWS, SEQUENCE)


@pytest.mark.parametrize("layers", STAGES, ids=str)
def test_a_pending_weight_half_takes_what_the_closed_form_says(layers):
    counted = Counted(layers)
    counted.forward(0)
    counted.backward(0, "backward_input")
    held = sum(nbytes for nbytes, _ in counted.kept.alive[counted.stage.stage.index, (0, 0)].values())
    assert held == pending_bytes(CONFIG, layers, ROWS, SEQUENCE)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("again", [False, True], ids=["kept", "again"])
@pytest.mark.parametrize("layers", STAGES, ids=str)
def test_the_core_of_an_attention_keeps_what_its_form_says_or_nothing(layers, again, dropout):
    config = replace(CONFIG, dropout=dropout)
    counted = Counted(layers, config, recompute_attention=again)
    counted.forward(0)
    assert counted.kept.peak_bytes == activation_bytes(config, layers, ROWS, SEQUENCE, recompute_attention=again)
    blocks = sum(1 for layer in layers if 0 < layer <= CONFIG.layers)
    kept, less = (activation_bytes(config, layers, ROWS, SEQUENCE, recompute_attention=each) for each in (False, True))
    pairs = 9 * ROWS * CONFIG.heads * SEQUENCE**2 + SEQUENCE**2
    assert kept - less == blocks * (pairs if dropout else 4 * ROWS * CONFIG.heads * SEQUENCE)
    counted.backward(0, "backward_input")
    held = sum(nbytes for nbytes, _ in counted.kept.alive[counted.stage.stage.index, (0, 0)].values())
    assert held == pending_bytes(config, layers, ROWS, SEQUENCE, recompute_attention=again)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layers", STAGES, ids=str)
def test_autocast_keeps_what_its_forms_say(layers, dtype, dropout):
    """Of a block 14 C numbers a token and 12 C² weights in 2 bytes, 2 C numbers and what norms keep in 4."""
    config, sizes = replace(CONFIG, dropout=dropout), (ROWS, SEQUENCE)
    counted = Counted(layers, config, autocast=dtype)
    counted.forward(0)
    assert counted.kept.peak_bytes == activation_bytes(config, layers, *sizes, product=2)
    counted.backward(0, "backward_input")
    held = sum(nbytes for nbytes, _ in counted.kept.alive[counted.stage.stage.index, (0, 0)].values())
    assert held == pending_bytes(config, layers, *sizes, product=2)


@pytest.mark.parametrize("layers", STAGES, ids=str)
def test_what_is_recomputed_under_autocast_is_kept_as_its_ends(layers):
    counted = Counted(layers, recompute=True, autocast=torch.bfloat16)
    counted.forward(0)
    assert counted.kept.peak_bytes == boundary_bytes(CONFIG, layers, ROWS, SEQUENCE)


WIDE = 32
ROW = [
    *(partial(nn.Linear, 16, WIDE), nn.ReLU, partial(nn.LayerNorm, WIDE), partial(nn.Linear, WIDE, WIDE), nn.GELU),
    *(partial(nn.Dropout, 0.1), partial(nn.Softmax, -1), partial(nn.Linear, WIDE, 8)),
]


class Shifted(nn.Module):
    """A layer that needs values."""

    def forward(self, x):
        return x + float(x.sum())


@pytest.mark.parametrize("layers", [ROW, [*ROW[:3], Shifted, *ROW[3:]]], ids=["without values", "with values"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16], ids=str)
def test_a_row_of_layers_is_planned_to_keep_what_it_keeps(layers, dtype):
    """Planned are 0.98 to 1.15 of what each stage keeps of a microbatch, in its forward and as its messages."""
    x, targets = torch.ones(12, 16), torch.zeros(12, dtype=torch.int64)
    model = LayeredModel(pp.Sequential(layers), nn.functional.cross_entropy, 0, x)
    planned = LayerRowModel(model, (x, targets), torch.optim.AdamW, Numerics(autocast=dtype), {})
    stages, cut = planned.workload(pp.Plan("gpipe", 2, 1, 12, 4)).stages, partition(model.costs(1), 2)
    for index, (costs, held) in enumerate(zip(stages, cut, strict=True)):
        module = model.build(held, torch.float32, "cpu", seed=1)
        kept = Kept(storages(module.parameters()))
        stage = CountedStage(Stage(model, module, index, 2, torch.device("cpu"), autocast=dtype), kept)
        stage.forward((0, 0), x, KeyedRandom(1, 0, 0), targets if index else None)
        assert 0.98 * kept.peak_bytes <= costs.activation_bytes <= 1.15 * kept.peak_bytes
        if not index:
            x = stage.stage.alive[0, 0][1].detach()
            assert costs.message_bytes == x.nbytes


@pytest.mark.parametrize("layers", STAGES, ids=str)
def test_what_is_recomputed_is_kept_as_its_ends(layers):
    counted = Counted(layers, recompute=True)
    counted.forward(0)
    assert counted.kept.peak_bytes == boundary_bytes(CONFIG, layers, ROWS, SEQUENCE)


def test_each_live_microbatch_is_counted_and_none_after_its_backward():
    counted, one = Counted(range(1, 3)), activation_bytes(CONFIG, range(1, 3), ROWS, SEQUENCE)
    for microbatch in range(3):
        counted.forward(microbatch)
    counted.backward(1)
    assert len(counted.kept.alive) == 2
    counted.forward(3)
    assert (counted.kept.peak_bytes, counted.kept.peak_microbatches) == (3 * one, 3)
    counted.forward(4)
    assert (counted.kept.peak_bytes, counted.kept.peak_microbatches) == (4 * one, 4)


def test_what_is_recomputed_is_alive_while_it_is_used():
    counted, whole = Counted(range(1, 3), recompute=True), activation_bytes(CONFIG, range(1, 3), ROWS, SEQUENCE)
    ends = 2 * 4 * ROWS * SEQUENCE * CONFIG.d_model  # its input and its output
    counted.forward(0)
    assert counted.kept.peak_bytes == ends
    counted.backward(0)
    assert counted.kept.peak_bytes >= whole
    assert not counted.kept.alive


def on_ranks(model, ranks, given, work=None, **how):
    """What each rank's count of a microbatch of the whole model returns: its bytes after the forward, or of `work`."""
    x, targets = given

    async def on_rank(end):
        module = model.member_model(end.rank).build(range(model.layers), torch.float32, "cpu", 1)
        network, executor = MeshGroups(end, 1), TimedExecutor({}, RealClock())
        inner = TeamStage(model, module, range(model.layers), 0, network, executor, **how)
        stage = CountedTeamStage(inner, Kept(storages(chain(module.parameters(), given))))  # the feed holds its batch
        await stage.forward((0, 0), x, KeyedRandom(1, 0, 0), targets)
        return await work(stage, end.rank) if work else stage.kept.peak_bytes

    async def main():
        return await asyncio.gather(*map(on_rank, world(ranks)))

    return asyncio.run(main())


@pytest.mark.parametrize("recompute", [False, True])
def test_a_member_of_a_team_keeps_what_the_record_of_its_stage_says(recompute):
    model = ShardedGPT2(CONFIG, factors_of("megatron", 3))

    async def walked(stage, rank):
        after = stage.kept.peak_bytes
        await stage.backward((0, 0), None, 1.0, KeyedRandom(1, 0, 0), TARGETS)
        assert not stage.kept.alive
        return after, stage.kept.peak_bytes, recorded(model, rank, (ROWS, SEQUENCE)).kept

    for after, most, due in on_ranks(model, 3, (IDS, TARGETS), walked, recompute=recompute):
        assert 0.98 * most <= due <= 1.15 * most
        assert (after == 8 * ROWS * SEQUENCE) if recompute else (after == most)


TEAMS = ["data", "megatron", "c_attn=2.2.1,attn.c_proj=1.2.2,c_fc=4.1.1,mlp.c_proj=2.1.2,wte=2.1.2", "zero3", "summa"]


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("layout", TEAMS)
def test_of_a_member_autocast_keeps_the_copies_that_were_planned(layout, again):
    """To the byte: of each multiplication its input and its matrix, and four numbers of each head's attention."""
    config, rows = ModelConfig(layers=2, d_model=64, heads=8, vocab=128, positions=16, dropout=0.0), 8
    ids = torch.arange(rows * 16).view(rows, 16) % config.vocab
    model = ShardedGPT2(config, factors_of(layout, 4), states_of(layout), recompute_attention=again)
    plan = pp.Plan("gpipe", 1, 1, rows, 1, tensor=4, layout=layout)
    kept, planned = [], []
    for autocast in (None, torch.bfloat16):
        kept.append(max(on_ranks(model, 4, (ids, ids), autocast=autocast)))
        options = WorkloadOptions(recompute_attention=again, product=autocast.itemsize if autocast else 0)
        (stage,) = rank_workload(config, plan, 16, options).stages
        planned.append(stage.activation_bytes)
    assert planned[1] - planned[0] == kept[1] - kept[0] > 0


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("layout", ["megatron", "data"])
def test_a_member_of_a_row_keeps_what_its_record_says(layout, autocast):
    """Planned are 0.98 to 1.15 of what the fullest member keeps of a microbatch."""
    step = torch.randn(8, 6, 16), torch.randint(8, (8, 6))
    layers = [partial(nn.Linear, 16, WIDE), nn.GELU, partial(nn.LayerNorm, WIDE), partial(nn.Linear, WIDE, 8)]
    row = pp.Sequential(layers)

    def loss(y, targets):
        return nn.functional.cross_entropy(y.flatten(0, 1), targets.flatten())

    model = LayeredModel(row, loss, 0, step[0])
    split = SplitRow(model, step[0], ranks=2, layout=layout, rows=8)
    numerics = Numerics(autocast=autocast)
    whole = LayerRowModel(model, step, torch.optim.AdamW, numerics, {})
    (planned,) = TeamSizes(split, whole).workload(pp.Plan("gpipe", 1, 1, 8, 1, tensor=2)).stages
    kept = max(on_ranks(split, 2, step, autocast=numerics.autocast))
    assert 0.98 * kept <= planned.activation_bytes <= 1.15 * kept


@pytest.mark.parametrize("layers", [range(1, 2), range(1, 4)], ids=str)
def test_between_the_halves_of_its_backward_a_block_keeps_inputs_and_gradients(layers):
    """Of both norms and all four maps: 9 C numbers that went in and 11 C gradients that came back, for each token."""
    counted = Counted(layers)
    counted.forward(0)
    counted.backward(0, "backward_input")
    tokens, width = ROWS * SEQUENCE, CONFIG.d_model
    assert sum(n for n, _ in counted.kept.alive[1, (0, 0)].values()) == 4 * tokens * len(layers) * (20 * width + 4)
    counted.stage.backward_weight((0, 0))
    assert not counted.kept.alive


@pytest.mark.parametrize("stages", [[range(0, 5)], [range(0, 2), range(3, 5)]], ids=["whole", "both ends"])
def test_state_takes_what_the_closed_form_says(stages):
    parameters = {name: p for layers in stages for name, p in Counted(layers).parameters.items()}
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    optimizer = OptimizerConfig(lr=1e-3, steps=1).build(parameters)
    optimizer.step()
    counted = counted_state(parameters.values(), optimizer)
    assert sum(counted.values()) == state_bytes(CONFIG, stages)
    assert counted["gradients"] == counted["parameters"]
