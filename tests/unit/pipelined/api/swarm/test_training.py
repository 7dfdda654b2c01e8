"""What a swarm cannot train is refused before it begins, with a remedy; a process that differs has another digest."""

from functools import partial

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.api.swarm.parties import SwarmSettings
from pipelined.api.swarm.training import UserProgram, UserTask, UserTraining
from pipelined.api.user_optimizer import UserOptimizer

SHARED = nn.Linear(4, 4)


def linear():
    return nn.Linear(4, 4)


class Pair(nn.Module):
    """Returns two tensors."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        return self.inner(x), x


class Second(nn.Module):
    """Takes two tensors."""

    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, pair):
        return self.inner(pair[0]) + pair[1]


class Halved(nn.Linear):
    """Its forward writes a parameter."""

    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(0.5)
        return super().forward(x)


def given(layers, loss=nn.functional.mse_loss, rate=0.1):
    return UserProgram(layers, loss, partial(UserOptimizer, lambda p: torch.optim.SGD(p, lr=rate)))


def prepared(layers, loss=nn.functional.mse_loss, depth=2, rows=8, **settings):
    batches = [(torch.randn(rows, 4), torch.randn(rows, 4))]
    return SwarmSettings(depth=depth, **{"microbatches": 4, **settings}).prepare(batches, given(layers, loss))[1]


def summed(output, targets):
    return (output - targets).square().sum(), torch.tensor(output.numel())


@pytest.mark.parametrize(
    ("layers", "settings", "message"),
    [
        ([linear, lambda: nn.Linear(5, 4)], {}, "layer 1 .*rejected the output of layer 0"),
        ([Pair, Second], {}, "layer 0 ends stage 0 with a tuple, and a swarm sends one tensor"),
        ([linear, nn.ReLU], {}, "stage 1 has nothing to train .*choose a depth below 2"),
        ([lambda: SHARED, lambda: SHARED], {}, r"stages 0 and 1 share 0\.weight, .*untie them"),
        ([linear, lambda: nn.BatchNorm1d(4)], {}, "layer 1 keeps statistics in a buffer .*GroupNorm"),
        ([linear, lambda: Halved(4, 4)], {}, r"layer 1 writes a parameter in its forward \(1\.weight\), .*optimizer"),
        ([linear, linear], {"loss": summed}, "the loss is not one number"),
        ([linear, linear], {"loss": nn.functional.nll_loss}, "the first microbatch cannot be computed"),
        ([linear, linear], {"loss": lambda x, y: x.sum() * float("nan")}, "the loss of the first microbatch is nan"),
        ([linear, linear], {"rows": 7}, "a batch of 7 rows cannot be cut into 4 microbatches"),
        ([linear, linear], {"depth": 3}, "stages"),
        ([linear, linear], {"depth": 0}, "depth must be at least 1"),
        ([linear, linear], {"microbatches": 0}, "microbatches must be at least 1"),
        ([linear, linear], {"steps": -3}, r"steps must be at least 1 \(it is -3\)"),
        ([linear, linear], {"clip": -1.0}, "clip must be at least 0"),
        ([linear, linear], {"clip": float("nan")}, "clip must be at least 0"),
        ([linear, linear], {"rebalance": -1.0}, "rebalance must be at least 0"),
        ([linear, linear], {"lease": float("inf")}, "lease must be above 0, and finite"),
        ([linear, linear], {"lease": 4000.0}, r"lease must be at most 3600 s \(it is 4000\)"),
        ([linear, linear], {"compress": "nonsense"}, "compress: unknown codec 'nonsense'; known: bf16"),
        ([linear, linear], {"compress_sums": "zstd:99"}, "compress_sums: zstd takes a number from 1 to 19"),
    ],
)
def test_what_a_swarm_cannot_train_is_refused(layers, settings, message):
    with pytest.raises(pp.UsageError, match=message):
        prepared(layers, **settings)


def test_the_record_of_the_directory_gives_peers_the_same_training():
    training = prepared([linear, nn.Tanh, linear], clip=0.5, lease=2.0)
    task = UserTask.unpack(training.task.pack())
    assert task == training.task
    assert UserTraining(given([linear, nn.Tanh, linear]), task).rules() == training.rules()
    endless = training.task.pack().replace(b"[2, 4]", b"[Infinity]")
    assert endless != training.task.pack()
    no_dtype = training.task.pack().replace(b'"dtype": "float32"', b'"dtype": "flaot32"')
    for other in (b'{"subject": {}}', b"[" * 200_000, endless, no_dtype):
        with pytest.raises(pp.UsageError, match=r"no training of pipelined\.swarm"):
            UserTask.unpack(other)


@pytest.mark.parametrize(
    "other",
    [
        given([linear, nn.ReLU, linear]),
        given([linear, nn.Tanh, linear], rate=0.2),
        given([linear, nn.Tanh, linear], nn.functional.l1_loss),
        given(nn.Sequential(linear(), nn.Tanh(), linear())),
    ],
    ids=["layers", "optimizer", "loss", "initial values"],
)
def test_a_process_that_differs_has_another_digest(other):
    training = prepared([linear, nn.Tanh, linear])
    assert UserTraining(other, training.task).rules().model != training.rules().model
