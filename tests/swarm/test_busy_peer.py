"""A busy peer rejects a request and is not banned for it: trainers try the others first, and it again."""

import pytest

from tests.swarm.virtual_swarm import VirtualSwarm
from transports.rpc import Rejected


def refuse(endpoint, times):
    """Let this endpoint have too much to do for so many backward passes; how often it still will, as a list of one."""
    plain, left = endpoint.handle, [times]

    def busy(handler):
        async def respond(request):
            if left[0]:
                left[0] -= 1
                raise Rejected("busy", topic="backward")
            return await handler(request)

        return respond

    endpoint.handle = lambda topic, handler, *limits: plain(
        topic, busy(handler) if topic == "backward" else handler, *limits
    )
    return left


@pytest.mark.virtual
@pytest.mark.parametrize("peers", [1, 2])
async def test_a_busy_peer_is_not_banned(peers):
    swarm = VirtualSwarm(stages=1, batch=6)
    for at in range(peers):
        swarm.peer(f"p{at}", 0)
    left = refuse(swarm.endpoints["p0"], 5)
    swarm.trainer("t0", steps=3)
    await swarm.finish(within=20.0)
    report = swarm.trainers["t0"].trainer.report(None)
    await swarm.close()
    assert left == [0] and not report.banned
    assert set(report.replies) == {f"p{at}" for at in range(peers)}
