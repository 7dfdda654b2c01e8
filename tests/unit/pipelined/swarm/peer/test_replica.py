"""A sum holds what its ledger says, whenever a waiting request is cancelled."""

import asyncio

import numpy as np
import pytest

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import VirtualClock
from pipelined.process.reporting import events
from pipelined.state.stages.versions import Version
from pipelined.swarm.peer.replica import Replica
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol.rounds import Prepare, Reduce, Resume, RoundMember, RoundName
from pipelined.swarm.protocol.work import Backward, Forward
from pipelined.swarm.records.steps import Head
from pipelined.swarm.rules import Rules
from pipelined.swarm.stages.swarm_stage import Coding, Microbatch
from tests.swarm.exact import WIDTH, ExactStage
from transports import Block
from transports.rpc import Rejected
from transports.rpc.virtual.network import VirtualNetwork

pytestmark = pytest.mark.virtual

SECONDS = {"forward": 1.0, "backward": 1.0, "update": 1.0}
NAME, ME = RoundName(1, 1), RoundMember("p0", "virtual://p0", 1)


class Slow:
    """Has an answer after a second."""

    async def request(self, who, request, limit=None):
        await VirtualClock().sleep(1.0)


def new_replica(codec=""):
    endpoint = VirtualNetwork().endpoint("p0")
    executor = TimedExecutor(SECONDS, VirtualClock())
    rules = Rules("exact", stages=1, batch=8, samples=8)
    state = StageState("p0", 0, ExactStage(0, 1), Version(0, ""), rules=rules, executor=executor)
    return Replica(state, endpoint, Coding(codec, threads=False))


def microbatch(index, count=True):
    arrays = (Block.of(np.arange(WIDTH, dtype=np.float64) + index),), None
    return Backward(0, index, "", arrays, arrays, count)


def is_what_it_says(replica):
    """The sum is that of the microbatches in the ledger, added again."""
    expected = ExactStage(0, 1)
    for index in sorted(replica.counted):
        x = Block.of(np.arange(WIDTH, dtype=np.float64) + index)
        expected.backward(Microbatch(0, index), [x], [x], True)
    return np.array_equal(replica.stage.sums, expected.sums)


async def cancelled_after(seconds, work):
    task = asyncio.ensure_future(work)
    await VirtualClock().sleep(seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("topic", ["reduce", "resume"])
async def test_a_leader_lost_while_a_sum_is_dropped_leaves_ledger_and_sum_alike(topic):
    replica = new_replica()
    await replica.passes.backward(microbatch(0))
    await replica.rounds.prepare(Prepare(NAME, 0, ""))
    busy = asyncio.ensure_future(replica.passes.backward(microbatch(1, count=False)))
    await asyncio.sleep(0)
    request = Resume(NAME, False) if topic == "resume" else Reduce(NAME, (ME,), False)
    await cancelled_after(0.5, getattr(replica.rounds, topic)(request))
    await busy
    assert is_what_it_says(replica)


async def test_a_pass_during_the_end_of_an_incarnation_is_not_counted():
    replica = new_replica()
    await replica.passes.backward(microbatch(0))
    busy = asyncio.ensure_future(replica.passes.backward(microbatch(1)))
    await asyncio.sleep(0)
    ending = asyncio.ensure_future(replica.stop_counting())
    await asyncio.sleep(0)
    late = asyncio.ensure_future(replica.passes.backward(microbatch(2)))
    await ending
    replica.give_up("moved")
    await asyncio.gather(busy, late, return_exceptions=True)
    assert not replica.stage.sums.any() and not replica.counted


async def test_a_given_up_replica_computes_nothing():
    replica = new_replica()
    waiting = asyncio.ensure_future(replica.passes.backward(microbatch(1)))
    await asyncio.sleep(0)
    replica.give_up("moved")
    with pytest.raises(Rejected, match="left"):
        await waiting
    assert not replica.stage.sums.any()


async def test_a_peer_counts_again_after_any_round_that_came_before():
    replica = new_replica()
    await replica.rounds.prepare(Prepare(NAME, 0, ""))
    assert not (await replica.passes.backward(microbatch(0))).counted
    await replica.rounds.resume(Resume(RoundName(2, 1), True))
    assert (await replica.passes.backward(microbatch(0))).counted
    with pytest.raises(Rejected, match="old round"):
        await replica.rounds.resume(Resume(RoundName(1, 2), False))
    assert replica.counted == {0} and is_what_it_says(replica)


async def test_counts_at_other_parameters_of_the_same_step_are_not_reported():
    replica = new_replica()
    await replica.passes.backward(microbatch(0))
    with pytest.raises(Rejected, match="other lineage"):
        await replica.rounds.prepare(Prepare(NAME, 0, "where step 0 begins again"))


async def test_a_late_resume_does_not_undo_a_later_round():
    replica = new_replica()
    handing = asyncio.ensure_future(replica.handover.hand_over(None, Slow(), 60.0))
    await asyncio.sleep(0)
    rounds = [asyncio.ensure_future(replica.rounds.prepare(Prepare(RoundName(term, 1), 0, ""))) for term in (1, 2)]
    await handing
    with pytest.raises(Rejected, match="old round"):
        await rounds[0]
    await rounds[1]
    await replica.rounds.reduce(Reduce(RoundName(2, 1), (ME,), True))


async def test_a_peer_one_step_behind_a_rollback_has_no_part_in_it():
    assert not await new_replica().follow(Head(1, "exact", step=1, round="3.1", lineage="a"))


async def test_a_step_is_applied_once():
    """A replica that is cancelled in it ends soon, and its successor may find the executor still at work."""

    replica, head = new_replica(), Head(1, "exact", 1, "1.1", [["p0"]], 1.0, lineage="a")
    await replica.passes.backward(microbatch(0))
    await replica.rounds.prepare(Prepare(NAME, 0, ""))
    await replica.rounds.reduce(Reduce(NAME, (ME,), True))
    once = ExactStage(0, 1)
    once.apply(0, replica.stage.sums.copy(), 1.0)
    assert await asyncio.gather(replica.follow(head), replica.follow(head)) == [True, True]
    assert np.array_equal(replica.stage.weights, once.weights) and replica.step == 1


async def test_outputs_beyond_the_codec_go_without_it_and_a_warning_says_why():
    """Its refusal would have been a peer's fault to the trainer, which banned one peer of the stage after another."""

    replica = new_replica("fp16")
    replica.stage.forward = lambda which, inputs: [np.full(WIDTH, 7e4)]
    blocks, note = (await replica.passes.forward(Forward(0, 0, "", ((Block.of(np.zeros(WIDTH)),), None)))).arrays
    assert note is None and np.array_equal(blocks[0], np.full(WIDTH, 7e4))
    assert "beyond float16" in events.recent()[-1].facts["why"]
