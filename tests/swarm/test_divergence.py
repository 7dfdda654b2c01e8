"""Training that has diverged ends with what to do about it; it neither sums what is no number nor tries for ever."""

import numpy as np
import pytest

from pipelined.aio.clock import run_virtual
from pipelined.errors import UsageError
from pipelined.process.reporting import events
from pipelined.swarm.peer.stage_state import StageState
from tests.swarm import exact, virtual_swarm
from tests.swarm.exact import WIDTH, ExactStage, data
from tests.swarm.virtual_swarm import VirtualSwarm


def test_microbatches_that_are_not_finite_end_training(monkeypatch):
    def spoilt(which):
        inputs, labels = data(which)
        return (inputs, labels) if which.step < 2 else ([np.full(WIDTH, np.nan)], labels)

    monkeypatch.setattr(virtual_swarm, "data", spoilt)
    swarm = run_virtual(diverging("consecutive microbatches were not finite"))
    assert swarm.heads[-1].step == 2
    assert sum(each.rejected_requests["not finite"] for each in swarm.endpoints.values()) >= 16


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


def test_sums_beyond_a_codec_go_without_it_and_training_goes_on(monkeypatch):
    """The gradients are finite and come to more than float16 holds."""
    monkeypatch.setattr(exact, "BASE", 99_991)
    swarm = run_virtual(trained(sums_codec="fp16"))
    assert swarm.heads[-1].step == 5
    uncoded = [event.facts for event in events.recent() if event.kind == "sum goes uncoded"]
    assert {each["stage"] for each in uncoded} <= {0, 1} and "beyond float16" in uncoded[0]["why"]
    assert not [event for event in events.recent() if event.kind == "peer evicted"]


@pytest.mark.parametrize("codec", ["", "blockwise8", "bf16"])
def test_a_member_with_non_finite_sums_is_evicted_and_training_continues(monkeypatch, codec):
    """Its device is broken, say: what others add up to is finite."""
    plain = StageState.read_sums

    async def read_sums(self):
        sums, losses = await plain(self)
        return np.full(WIDTH, np.nan) if self.name == "p1" else sums, losses

    monkeypatch.setattr(StageState, "read_sums", read_sums)
    swarm = run_virtual(trained(sums_codec=codec))
    assert swarm.heads[-1].step == 5
    assert {event.facts["peer"] for event in events.recent() if event.kind == "peer evicted"} == {"p1"}


async def trained(**rules):
    swarm = VirtualSwarm(stages=2, batch=6, **rules)
    for at, stage in enumerate((0, 0, 0, 1)):
        swarm.peer(f"p{at}", stage)
    swarm.trainer("t0", steps=5)
    await swarm.finish(60.0)
    await swarm.close()
    return swarm
