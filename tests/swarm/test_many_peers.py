"""Many peers that start at once form one even membership in a moment, and take steps together."""

import pytest

from pipelined.aio.clock import VirtualClock
from tests.swarm.virtual_swarm import VirtualSwarm

STAGES = 4


@pytest.mark.virtual
@pytest.mark.parametrize("peers", [24, pytest.param(128, marks=pytest.mark.full)])
async def test_peers_that_start_at_once_spread_evenly_within_three_seconds(peers):
    swarm, clock = VirtualSwarm(stages=STAGES, batch=16), VirtualClock()
    for number in range(peers):
        swarm.peer(f"peer-{number:03}")
    swarm.trainer("trainer", steps=6)
    view = swarm.trainers["trainer"].view
    serving = lambda: [len(view.serving(stage)) for stage in range(STAGES)]  # noqa: E731
    await swarm.until(lambda: sum(serving()) == peers)
    assert clock.now() < 3.0 and serving() == [peers // STAGES] * STAGES
    await swarm.finish(within=60.0)
    assert len(swarm.peers) == peers
    await swarm.close()
