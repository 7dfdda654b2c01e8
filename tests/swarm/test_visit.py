"""A visitor takes home what stands at every stage, to the bit, and costs the swarm no step."""

import numpy as np
import pytest

from pipelined.clock import run_virtual
from pipelined.device import TimedDevice
from pipelined.swarm.visit import Visitor
from tests.swarm.exact import ExactStage
from tests.swarm.virtual_swarm import VirtualSwarm

STEPS = 6


def visited(after, kill=""):
    """What a visitor brings home that comes after so many steps, and the swarm that it came to."""

    async def train():
        swarm = VirtualSwarm(stages=2, batch=4)
        for name, stage in [("a", 0), ("b", 1), ("c", 1)]:
            swarm.peer(name, stage)
        swarm.trainer("t0", steps=STEPS)
        await swarm.until(lambda: swarm.heads and swarm.heads[-1].step >= after)
        endpoint, directory, clock = swarm.client("visitor")
        build = lambda index: ExactStage(index, 2)  # noqa: E731
        visitor = Visitor("visitor", build, swarm.rules, endpoint, directory, clock, TimedDevice({}, clock))
        if kill:
            swarm.kill(kill)
        taken = await visitor.take()
        await swarm.finish(within=20)
        await swarm.close()
        return taken, swarm

    return run_virtual(train())


@pytest.mark.parametrize("after, kill", [(2, ""), (STEPS, ""), (STEPS, "b")])
def test_every_stage_is_of_one_step_and_as_one_process_has_it(after, kill):
    taken, swarm = visited(after, kill)
    (point,) = {mark.point for mark, _ in taken}
    assert after <= point.step <= STEPS and point in [head.point for head in swarm.heads]
    for stage, (mark, state) in enumerate(taken):
        assert (mark.stage, mark.stages) == (stage, 2)
        assert np.array_equal(state[f"{stage}/weights"], swarm.reference.weights(point.step, stage))
    assert [head.step for head in swarm.heads] == list(range(STEPS + 1))
