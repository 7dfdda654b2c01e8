"""Holders of the same parameters divide their update by rows, as equally as rows allow."""

import pytest
import torch
from torch import nn

from pipelined.training.sums.update_shards import cut_by_rows, shard_update

ALONE = ((0,),)
"""The copies in a team of one."""


def test_neighbouring_parameters_are_cut_by_whole_rows():
    assert cut_by_rows([(6, 64), (128,)], 2) == [256, 256]
    assert cut_by_rows([(5, 64)], 2) == [128, 192]
    assert cut_by_rows([(1, 9)], 3) == [0, 0, 9]
    assert cut_by_rows([(0, 4)], 2) == [0, 0]


def test_parameters_are_cut_between_vectors():
    assert cut_by_rows([(200,)], 2) == [96, 104]
    assert cut_by_rows([(80, 3)], 2) == [96, 144], "32 rows of 3 are 3 vectors"
    assert cut_by_rows([(), (3,)], 2) == [1, 3] and cut_by_rows([(30,), (30,)], 2) == [30, 30]


def test_an_update_of_parts_has_the_bits_of_the_whole():
    """Torch's fused AdamW rounds one in thirty of the elements after the last whole vector otherwise than before it."""

    def updated(value, gradient):
        parameter = nn.Parameter(value.clone())
        optimizer = torch.optim.AdamW([parameter], lr=1e-2, fused=True)
        for step in range(4):
            parameter.grad = gradient * (1 + 0.3 * step)
            optimizer.step()
        return parameter.detach()

    torch.manual_seed(0)
    value, gradient = torch.randn(64, 203) * 0.02, torch.randn(64, 203) * 1e-3
    for rows in range(64):  # many short parameters, each cut in three
        parts = torch.split(torch.arange(203), cut_by_rows([(203,)], 3))
        pieces = [updated(value[rows, part], gradient[rows, part]) for part in parts]
        assert torch.cat(pieces).equal(updated(value[rows], gradient[rows]))


@pytest.mark.parametrize("shapes", [[(6, 4), (80,)], [(), (3,), (0, 2)], [(70, 3), (5,), (2, 2, 40)]])
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_the_holders_update_each_element_once(shapes, parts):
    parameters = {f"p{n}": nn.Parameter(torch.zeros(shape)) for n, shape in enumerate(shapes)}
    holders = {name: (((0,),), tuple(range(parts))) for name in parameters}
    shards = [shard_update(parameters, holders, stages=(0,), rank=rank) for rank in range(parts)]
    for shard in shards:
        for part in shard.updated.values():
            part.data += 1
    assert all((parameter == 1).all() for parameter in parameters.values())
    assert {name for shard in shards for name in shard.updated} == parameters.keys(), "an empty one has a holder, too"


def test_a_holder_has_the_rows_between_those_of_its_neighbours_and_views_of_their_memory():
    parameters = {"a": nn.Parameter(torch.zeros(3, 32)), "b": nn.Parameter(torch.zeros(5))}
    holders = dict.fromkeys(parameters, (ALONE, (4, 7)))
    low, high = (shard_update(parameters, holders, stages=(1,), rank=rank) for rank in (4, 7))
    assert low.shares == high.shares and [share.lengths for share in low.shares] == [(32, 69)]
    assert (low.spans, low.rows) == ({"a": (0, 32)}, {"a": (0, 1)})
    assert (high.spans, high.rows) == ({"a": (32, 96), "b": (96, 101)}, {"a": (1, 3)})
    assert high.updated["b"] is parameters["b"]
    with torch.no_grad():
        high.updated["a"].fill_(1)
    assert parameters["a"].sum(1).tolist() == [0, 32, 32]


def test_parameters_with_other_holders_are_a_share_of_their_own():
    parameters = {name: nn.Parameter(torch.zeros(4)) for name in "abc"}
    two_holders, one_holder = (ALONE, (0, 1)), (ALONE, (0,))
    shards = shard_update(parameters, {"a": two_holders, "b": two_holders, "c": one_holder}, stages=(0,), rank=0)
    assert [(share.span, share.holders, share.lengths) for share in shards.shares] == [
        ((0, 8), (0, 1), (4, 4)),
        ((8, 12), (0,), (4,)),
    ]
    assert shards.updated.keys() == {"a", "c"} and shards.rows == {}
