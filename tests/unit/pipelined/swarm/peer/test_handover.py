"""What a peer that leaves had counted passes to another whole and of the same step, or not at all."""

import asyncio

import numpy as np
import pytest

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import VirtualClock
from pipelined.membership.messaging.messages import Done
from pipelined.state.stages.versions import Version
from pipelined.swarm.peer.replica import Replica
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol.rounds import Inherit, Prepare, Reduce, RoundMember, RoundName
from pipelined.swarm.protocol.work import Backward
from pipelined.swarm.records.members import PeerRecord, Phase
from pipelined.swarm.records.steps import Head
from pipelined.swarm.rules import Rules
from pipelined.swarm.stages.delayed import with_delayed_updates
from pipelined.swarm.stages.swarm_stage import Coding
from tests.swarm.exact import WIDTH, ExactStage
from transports import Block
from transports.rpc import Rejected
from transports.rpc.virtual.network import VirtualNetwork

pytestmark = pytest.mark.virtual

NAME, ME = RoundName(1, 1), RoundMember("p0", "virtual://p0", 1)
SUCCESSOR = PeerRecord("p1", "virtual://p1", 2, 0, Phase.SERVING, "model")
X = np.arange(WIDTH, dtype=np.float64)


def new_replica(delayed=False):
    endpoint, executor = (
        VirtualNetwork().endpoint("p0"),
        TimedExecutor({"backward": 1.0, "update": 1.0}, VirtualClock()),
    )
    rules = Rules("exact", stages=1, batch=8, samples=8, delayed=delayed)
    stage = with_delayed_updates(ExactStage(0, 1), delayed)
    return Replica(
        StageState("p0", 0, stage, Version(0, ""), rules=rules, executor=executor), endpoint, Coding(threads=False)
    )


def microbatch(step, index, lineage=""):
    arrays = (Block.of(X),), None
    return Backward(step, index, lineage, arrays, arrays, True)


async def soon(work):
    """Begin this, and let it come as far as the executor."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    return task


class Successor:
    """Takes what it is asked to inherit, after so many seconds."""

    def __init__(self, seconds):
        self._seconds, self.sums = seconds, None

    async def request(self, who, request, limit=None):
        await VirtualClock().sleep(self._seconds)
        self.sums = request.sums.copy()
        return Done()


async def test_counts_are_dropped_after_the_commit():
    """The successor's executor was busy, and then took the step."""

    replica = new_replica()
    await replica.passes.backward(microbatch(0, 0))
    await replica.rounds.prepare(Prepare(NAME, 0, ""))
    await replica.rounds.reduce(Reduce(NAME, (ME,), True))
    following = await soon(replica.follow(Head(1, "m", 1, "1.1", [["p0"]], 1.0, lineage="a")))
    inheriting = await soon(replica.handover.inherit(Inherit(0, "", X, np.array([5]), np.array([1.0]))))
    assert await following and replica.step == 1
    with pytest.raises(Rejected, match="step passed"):
        await inheriting
    assert not replica.counted and not replica.stage.sums.any()


async def test_what_is_handed_over_stays_as_it_was_though_the_next_step_is_computed_meanwhile():
    replica, successor = new_replica(delayed=True), Successor(seconds=5.0)
    await replica.passes.backward(microbatch(0, 0))
    counted = replica.stage.sums.copy()
    handing = await soon(replica.handover.hand_over(SUCCESSOR, successor, 60.0))
    await replica.passes.backward(microbatch(1, 3))
    await handing
    assert counted.any() and np.array_equal(successor.sums, counted)


@pytest.mark.parametrize(
    "sums, indices, losses, why",
    [
        (np.zeros(WIDTH + 1), [5], [1.0], "another stage"),
        (np.zeros(WIDTH, np.float32), [5], [1.0], "another stage"),
        (X, [5, 6], [1.0], "another stage"),
        (np.full(WIDTH, np.nan), [5], [1.0], "not finite"),
        (X, [5], [np.inf], "not finite"),
        (X, [5, 5], [1.0, 1.0], "twice"),
        (X, [8], [1.0], "outside"),
        (X, [-1], [1.0], "outside"),
    ],
)
async def test_a_sum_that_cannot_be_inherited_is_rejected_and_changes_nothing(sums, indices, losses, why):
    replica = new_replica()
    with pytest.raises(Rejected, match=why):
        await replica.handover.inherit(Inherit(0, "", sums, np.array(indices), np.array(losses)))
    assert not replica.counted and not replica.stage.sums.any()
