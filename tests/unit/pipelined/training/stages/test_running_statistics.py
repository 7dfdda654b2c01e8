"""What norms would write is noted by microbatch and averaged in their order; other writes stay, or are refused."""

import pytest
import torch
from torch import nn

from pipelined.errors import UsageError
from pipelined.training.stages.running_statistics import RunningStatistics
from transports import Block, Message

X = torch.arange(24.0).reshape(4, 3, 2).pow(2)  # four microbatches


def replicas_of(make, *shares):
    """Modules after the exchange; their replicas computed these microbatches of step 0."""
    modules = [make() for _ in shares]
    statistics = [RunningStatistics(module, 0, len(shares)) for module in modules]
    for module, replica, share in zip(modules, statistics, shares, strict=True):
        for microbatch in share:
            replica.run_noting(lambda module=module, m=microbatch: module(X[m]), 0, microbatch)
    parcels = [replica.take(0) for replica in statistics]
    messages = [Message(0, ("x",), tuple(map(Block.of, parcel.tensors)), parcel.note) for parcel in parcels]
    for replica in statistics:
        replica.merge(0, messages)
    return [module.state_dict() for module in modules]


class Called(nn.Module):
    """A batch norm by a call of torch, with buffers of its own."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("var", torch.ones(2))

    def forward(self, x):
        return nn.functional.batch_norm(x, self.mean, self.var, training=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm1d(2),
        lambda: nn.BatchNorm1d(2, momentum=None),
        lambda: nn.Sequential(nn.BatchNorm1d(2), nn.BatchNorm1d(2, momentum=0.5)),
        lambda: nn.BatchNorm1d(2).eval(),
        Called,
    ],
)
def test_replicas_hold_what_one_loop_in_order_gives(make):
    expected = make()
    for x in X:
        expected(x)
    for state in replicas_of(make, (2, 0), (3, 1)):
        for name, value in expected.state_dict().items():
            torch.testing.assert_close(state[name], value)


def test_a_forward_leaves_the_buffers_as_they_were_until_the_step_ends():
    norm = nn.BatchNorm1d(2)
    statistics = RunningStatistics(norm, 0, 1)
    statistics.run_noting(lambda: norm(X[0]), 0, 0)
    assert norm.num_batches_tracked == 0 and not norm.running_mean.any()
    statistics.run_noting(lambda: norm(X[1]), 1, 0)
    statistics.merge(0, [statistics.take(0)])
    alone = nn.BatchNorm1d(2)
    alone(X[0])
    torch.testing.assert_close(norm.state_dict(), alone.state_dict())


class Counting(nn.Module):
    """It writes a buffer by itself."""

    def __init__(self, persistent=True):
        super().__init__()
        self.register_buffer("seen", torch.zeros(2), persistent)

    def forward(self, x):
        self.seen = self.seen * 0.5 + x.sum(0)
        return x


def test_a_buffer_that_a_layer_writes_by_itself_is_kept_where_there_is_one_replica():
    (state,) = replicas_of(Counting, (0, 1))
    assert torch.equal(state["seen"], X[0].sum(0) * 0.5 + X[1].sum(0))


def test_what_a_layer_writes_by_itself_is_read_by_later_forwards_and_reaches_the_buffer_with_its_step():
    layer = Counting()
    statistics = RunningStatistics(layer, 0, 1)
    for step, x in enumerate(X[:2]):  # two steps overlap
        statistics.run_noting(lambda x=x: layer(x), step, 0)
    assert not layer.seen.any()
    statistics.merge(0, [statistics.take(0)])
    assert torch.equal(layer.seen, X[0].sum(0))
    statistics.merge(1, [statistics.take(1)])
    assert torch.equal(layer.seen, X[0].sum(0) * 0.5 + X[1].sum(0))


def test_what_refused_steps_have_noted_is_dropped():
    layers = nn.Sequential(Counting(), nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in layers.state_dict().items()}
    statistics = RunningStatistics(layers, 0, 1)
    statistics.run_noting(lambda: layers(X[1] * torch.nan), 0, 0)
    statistics.drop()
    statistics.merge(0, [statistics.take(0)])
    torch.testing.assert_close(layers.state_dict(), before)
    statistics.run_noting(lambda: layers(X[0]), 0, 0)
    statistics.merge(0, [statistics.take(0)])
    assert torch.equal(layers[0].seen, X[0].sum(0))


def test_it_is_refused_where_replicas_would_differ():
    with pytest.raises(UsageError, match=r"a layer of stage 0 writes its buffer seen \(ranks with this stage: 2\)"):
        replicas_of(Counting, (0,), (1,))
    replicas_of(lambda: Counting(persistent=False), (0,), (1,))
