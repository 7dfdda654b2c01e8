"""Clusters that train a user's own row of layers: norms with running statistics, and a skip over two stages."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.ravnest.stage.saving import SaveSettings
from pipelined.state.stages.store import DiskStore, saved_stages
from pipelined.state.stages.whole_model import find_whole_model
from pipelined.state.tensor_specs import specs_of
from pipelined.training.models.user_model import bind
from pipelined.training.optimizer import OptimizerConfig
from tests.numerics.ravnest import training_of
from tests.numerics.test_ravnest_rounds import on_loop
from tests.ravnest.story import CASE
from tests.ravnest.test_overlapped import SLOW_S, digest_of, plain, recorded, replayed

WIDTH, CLASSES, ROWS, STEPS = 6, 3, 4, 17
OPTIMIZER = OptimizerConfig(lr=1e-2, steps=STEPS, warmup=2, clip=0)


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH, bias=False), nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return torch.relu(self.norm(self.linear(x)))


class Begin(Normed):
    """Its output goes to the next layer, and to the last one."""

    def forward(self, x):
        y = super().forward(x)
        return y, y


class Middle(Normed):
    def forward(self, given):
        x, skip = given
        return super().forward(x), skip


class End(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, given):
        x, skip = given
        return self.linear(x + skip)


class Draws:
    """Random rows with classes, by step and microbatch."""

    def __init__(self, dtype=torch.float32):
        self._dtype = dtype

    def inputs(self, step, microbatch):
        return torch.randn(ROWS, WIDTH, generator=generator(step, microbatch)).to(self._dtype)

    def targets(self, step, microbatch):
        return torch.randint(CLASSES, (ROWS,), generator=generator(step, microbatch))


def generator(step, microbatch):
    return torch.Generator().manual_seed(100 * step + microbatch)


def training(microbatches=1, overlapped=True, dtype=torch.float32):
    row = pp.Sequential([Begin, Middle, Middle, End], initial="keyed")
    model = bind(row, nn.functional.cross_entropy, 3, torch.zeros(ROWS, WIDTH))
    base = training_of(replace(CASE, microbatches=microbatches), STEPS, OPTIMIZER, dtype, every=3)
    return replace(base, model=model, feed=Draws(dtype), microbatch_size=ROWS, overlapped=overlapped)


@pytest.mark.in_turns(6)
@pytest.mark.parametrize("microbatches, overlapped", [(1, True), (2, True), (2, False)])
def test_two_clusters_of_three_stages_hold_what_two_plain_loops_hold_to_the_bit(tmp_path, microbatches, overlapped):
    """Parameters and running statistics of each round and of the end; one microbatch is alive."""
    job = training(microbatches, overlapped)
    saving = SaveSettings(DiskStore(tmp_path / "saved", job.model.identity()), 1, "run")
    told, (orders,) = recorded(tmp_path / "orders", job, nodes=6, delay=SLOW_S, saving=saving)
    assert [len(row) for row in orders.generation.clusters] == [3, 3]
    losses, final, rounds = plain(job, orders)
    if microbatches == 1:
        assert {at: found for at, [found] in told.shown.items()} == losses
    assert told.ends == [f"average {on_loop(digest_of(job, orders, final))}"]
    whole = find_whole_model([tmp_path / "saved"])
    for name, value in final.items():
        assert torch.equal(whole.values[name], value), name
    assert int(whole.values["1.norm.num_batches_tracked"]) == 9 * microbatches, "of the first cluster alone"
    first = next(each for each in saved_stages(tmp_path / "saved") if each.step == 6)
    for name in ("1.norm.running_mean", "1.norm.running_var", "1.norm.weight"):
        mean = sum(each[name] for each in rounds[1]) / 2
        specs = {f"{name}/value": specs_of({"": mean})[""]}
        assert torch.equal(saving.store.load(first, specs)[f"{name}/value"].torch(), mean), name


def test_the_replay_of_a_row_of_layers_has_the_same_bits(tmp_path):
    job = training(microbatches=2)
    told, orders = recorded(tmp_path, job, nodes=6, ahead=3, delay=SLOW_S)
    average, losses = replayed(job, orders)
    assert told.ends == [f"average {average}"]
    assert {at: found for at, [found] in told.shown.items()} == losses
