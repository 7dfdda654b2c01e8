"""The end of a step is timed by doing what training does there: on copies, in their dtype, at once or beside a step."""

import pytest
import torch
from torch import nn

from pipelined.measurement.timed.update import TimedUpdate
from pipelined.training.job.numerics import Numerics
from pipelined.training.optimizer import OptimizerConfig


def timed_update(**numerics):
    numerics = Numerics(**numerics)
    trained = nn.Parameter(torch.ones(3, dtype=numerics.dtype))
    trained.grad = torch.full_like(trained, 2.0)
    parameters = {"trained": trained, "frozen": nn.Parameter(torch.ones(2), requires_grad=False)}
    return trained, TimedUpdate(parameters, OptimizerConfig(lr=0.5, steps=1, warmup=0), numerics)


@pytest.mark.parametrize(
    ("numerics", "copied"),
    [
        ({}, None),
        ({"offload_optimizer": True}, torch.float32),
        ({"dtype": torch.bfloat16, "masters": torch.float32}, torch.float32),
        ({"dtype": torch.bfloat16, "offload_optimizer": True}, torch.bfloat16),
    ],
    ids=str,
)
def test_a_step_ends_with_the_update_and_the_copies_of_its_masters(numerics, copied):
    trained, update = timed_update(**numerics)
    ((name, work),) = update.pieces()
    work()
    assert name == "U"
    assert (trained < 1.0).all() and (trained.grad == 0.0).all()
    assert (update.updated["trained"] is trained) is (copied is None)
    if copied:
        assert update.updated["trained"].dtype is copied
        assert (update.updated["trained"].grad == 1.0).all(), "half of what came from the parameter, as if clipped"


def test_of_a_delayed_update_the_copies_end_a_step_and_the_rest_runs_beside_the_next():
    trained, update = timed_update(offload_optimizer=True, delayed_update=True)
    (first, end), (second, beside) = update.pieces()
    end()
    assert (first, second) == ("U", "D")
    assert (trained == 1.0).all() and (trained.grad == 0.0).all(), "nothing is updated yet"
    beside()
    assert (trained == 1.0).all() and (update.updated["trained"] < 1.0).all()
    end()
    assert (trained < 1.0).all()
