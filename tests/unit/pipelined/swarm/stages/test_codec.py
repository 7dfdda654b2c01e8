"""Coding at a peer happens beside its computing: only the first question's and the last answer's is seen."""

import asyncio

import numpy as np
import pytest

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import VirtualClock
from pipelined.state.stages.versions import Version
from pipelined.swarm.peer.replica import Replica
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol.work import Backward, Forward
from pipelined.swarm.rules import Rules
from pipelined.swarm.stages.swarm_stage import Coding
from tests.swarm.exact import WIDTH, ExactStage
from transports import pack
from transports.rpc.virtual.network import VirtualNetwork

CODEC, COMPUTE_S = "blockwise8", 1.0


class SlowCoding(Coding):
    """Takes its time, as a thread would."""

    def __init__(self, seconds):
        super().__init__(CODEC)
        self._seconds = seconds

    async def in_background(self, work):
        await VirtualClock().sleep(self._seconds)
        return work()


def microbatch(topic, index):
    packed = pack(CODEC, [np.arange(WIDTH, dtype=np.float64)], "what is sent")
    coded = packed.blocks, packed.note
    return Forward(0, index, "", coded) if topic == "forward" else Backward(0, index, "", coded, coded, True)


@pytest.mark.virtual
@pytest.mark.parametrize("coding_s", [0.0, 0.25, 0.9])
@pytest.mark.parametrize("topic, decoded", [("forward", 1), ("backward", 2)])
async def test_coding_is_hidden_behind_computing(topic, decoded, coding_s):
    executor = TimedExecutor({"forward": COMPUTE_S, "backward": COMPUTE_S}, VirtualClock())
    rules = Rules("exact", stages=2, batch=8, samples=8, codec=CODEC)
    coding, endpoint = SlowCoding(coding_s), VirtualNetwork().endpoint("p0")
    state = StageState("p0", 0, ExactStage(0, 2), Version(0, ""), rules=rules, executor=executor)
    replica = Replica(state, endpoint, coding)
    answers = await asyncio.gather(*(getattr(replica.passes, topic)(microbatch(topic, index)) for index in range(8)))
    assert all(reply.arrays[1] for reply in answers) and executor.busy == 8 * COMPUTE_S
    assert VirtualClock().now() == pytest.approx(8 * COMPUTE_S + (decoded + 1) * coding_s)
