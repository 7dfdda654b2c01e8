"""A member builds its pieces layer by layer, so that it has one whole layer at a time."""

import weakref

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.errors import UsageError
from pipelined.training.models.sequential import LayeredModel
from pipelined.training.models.split.split_row import SplitRow


def test_every_whole_layer_is_freed_before_the_next_is_built():
    alive, most = list[weakref.ref](), []

    def dense():
        layer = nn.Linear(8, 8)
        if layer.weight.device.type != "meta":
            alive.append(weakref.ref(layer.weight.untyped_storage()))
            most.append(sum(each() is not None for each in alive))
        return layer

    row = pp.Sequential([dense] * 4, initial="keyed")
    split = SplitRow(LayeredModel(row, nn.functional.mse_loss, 0), ranks=2, layout=None, rows=2)
    whole = dict(split.build(range(4), torch.float32, "cpu", 0).named_parameters())
    alive.clear(), most.clear()
    pieces = dict(split.member_model(1).build(range(4), torch.float32, "cpu", 0).named_parameters())
    assert most and set(most) == {1}
    assert not [each for each in alive if each() is not None], "a piece is a copy, not a view of the whole"
    for name, shards in split.parameters().items():
        assert torch.equal(pieces[name], shards.local(whole[name].detach(), 1)), name


def test_a_parameter_with_a_hook_is_refused_because_no_member_has_its_whole_gradient():
    row = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    row[1].bias.register_hook(torch.zeros_like)
    split = SplitRow(LayeredModel(pp.Sequential(row), nn.functional.mse_loss, 0), ranks=2, layout=None, rows=2)
    member = split.member_model(1)
    member.build(range(1), torch.float32, "cpu", 0)
    with pytest.raises(UsageError, match=r"1\.bias has a hook on its gradient, .* 2 ranks have parts; .* use tensor 1"):
        member.build(range(1, 2), torch.float32, "cpu", 0)
