"""What each rank updates, saves and counts of the tensors that it holds."""

import pytest
import torch
from torch import nn

from pipelined.programs.plan import Plan
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from pipelined.training.stages.parameters import build_local
from pipelined.training.sums.accumulation import Accumulation

GROUPS = Plan("gpipe", depth=2, width=2, microbatch_size=1, microbatches=2)
"""Ranks 0 and 2 hold the first stage, ranks 1 and 3 the last."""


class Part(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.register_parameter(f"weight{number}", nn.Parameter(torch.ones(4, 32)))
        self.register_parameter(f"frozen{number}", nn.Parameter(torch.ones(2), requires_grad=False))
        self.register_buffer(f"seen{number}", torch.zeros(2))

    def forward(self, x):
        return x


class Model:
    layers = 2

    def costs(self, sequence):
        return [1.0, 1.0]

    def build(self, layers, dtype, device, seed):
        return Part(layers.start).to(dtype).to(device)

    def loss(self, output, targets):
        return output.mean()

    def identity(self):
        return {}


def local(rank, divided, plan=GROUPS):
    numerics = Numerics(shard_optimizer=divided)
    job = JobDescription(model=Model(), plan=plan, feed=None, optimizer_settings=None, numerics=numerics, seed=0)
    built = build_local(job, rank, torch.device("cpu"))
    for bucket in built.buckets:
        bucket.gradient.fill_(1.0)
    return built


def test_the_first_holder_saves_and_counts_what_every_holder_updates():
    first, second = local(1, divided=False), local(3, divided=False)
    for holder in (first, second):
        assert {name: tuple(parameter.shape) for name, parameter in holder.updated.items()} == {
            "weight1": (4, 32),
            "frozen1": (2,),
        }
    assert first.state_names == ["weight1", "frozen1", "seen1"] and second.state_names == []
    assert first.saved == {"weight1": None, "frozen1": None, "seen1": None} and second.saved == {}
    assert first.squares(Accumulation()) == {"weight1": pytest.approx(128)}
    assert second.squares(Accumulation()) == {}


def test_where_holders_divide_an_update_each_saves_and_counts_its_own_rows():
    first, second = local(0, divided=True), local(2, divided=True)
    assert [
        {name: tuple(parameter.shape) for name, parameter in holder.updated.items()} for holder in (first, second)
    ] == [{"weight0": (2, 32), "frozen0": (2,)}] * 2
    assert first.state_names == ["weight0", "frozen0", "seen0"] and second.state_names == []
    assert first.saved.keys() == {"weight0", "frozen0", "seen0"} and second.saved.keys() == {"weight0"}
    assert [holder.saved["weight0"].indices[0] for holder in (first, second)] == [((0, 2),), ((2, 4),)]
    assert [holder.squares(Accumulation()) for holder in (first, second)] == [{"weight0": pytest.approx(64)}] * 2


def test_an_update_of_rows_takes_the_rows_of_what_has_the_shape_of_the_parameter():
    fields = {"value": torch.arange(128.0).view(4, 32), "step": torch.tensor(7.0)}
    rows = local(2, divided=True).updated_rows("weight0", fields)
    assert rows["value"].equal(fields["value"][2:]) and rows["step"] == 7
    assert local(2, divided=False).updated_rows("weight0", fields) is fields


def test_the_rows_of_an_update_lie_in_the_memory_of_the_whole_parameter():
    holder = local(2, divided=True)
    with torch.no_grad():
        holder.updated["weight0"].zero_()
    assert holder.parameters["weight0"].sum(dim=1).tolist() == [32, 32, 0, 0]


def test_a_holder_without_rows_neither_updates_nor_saves_nor_counts_a_parameter():
    """Five holders of four rows: the first one has none."""
    plan = Plan("gpipe", depth=2, width=5, microbatch_size=1, microbatches=1)
    first, *holders = (local(rank, divided=True, plan=plan) for rank in range(0, 10, 2))
    assert first.updated.keys() == {"frozen0"} and first.saved.keys() == {"frozen0", "seen0"}
    assert first.squares(Accumulation()) == {}
    for holder in holders:
        assert holder.updated["weight0"].shape == (1, 32) and holder.saved.keys() == {"weight0"}
