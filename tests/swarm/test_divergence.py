"""Training that has diverged ends with what to do about it; it neither sums what is no number nor tries for ever."""

import numpy as np
import pytest

from pipelined.clock import run_virtual
from pipelined.errors import UsageError
from tests.swarm import virtual_swarm
from tests.swarm.exact import WIDTH, ExactStage, data
from tests.swarm.virtual_swarm import VirtualSwarm


def test_microbatches_that_are_not_finite_end_training(monkeypatch):
    def spoilt(which):
        inputs, labels = data(which)
        return (inputs, labels) if which.step < 2 else ([np.full(WIDTH, np.nan)], labels)

    monkeypatch.setattr(virtual_swarm, "data", spoilt)
    swarm = run_virtual(diverging("came to nothing"))
    assert swarm.heads[-1].step == 2
    assert sum(each.refused["not finite"] for each in swarm.endpoints.values()) >= 16


def test_sums_that_are_not_finite_end_training(monkeypatch):
    monkeypatch.setattr(ExactStage, "square", lambda self, total: np.inf)
    swarm = run_virtual(diverging("add up to no finite number"))
    assert swarm.heads[-1].step == 0


async def diverging(message):
    swarm = VirtualSwarm(stages=2, batch=6)
    for at in range(4):
        swarm.peer(f"p{at}")
    swarm.trainer("t0", steps=5)
    with pytest.raises(UsageError, match=f"{message}.*lower the learning rate"):
        await swarm.tasks.pop("t0")
    swarm.trainers.clear()
    swarm.check()
    await swarm.close()
    return swarm
