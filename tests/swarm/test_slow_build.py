"""A peer renews its lease while it builds its stage."""

import asyncio

import pytest

from tests.swarm.exact import ExactStage
from tests.swarm.virtual_swarm import SECONDS, VirtualSwarm

BUILD_S = 3.0


@pytest.mark.virtual
async def test_a_peer_that_builds_for_longer_than_its_lease_builds_once():
    swarm, built = VirtualSwarm(stages=1, batch=4), []
    assert swarm.rules.lease_s < BUILD_S

    def build(index):
        built.append(index)
        if not swarm.devices["slow"]._turn.locked():  # outside the device a build stops the whole process
            swarm.network.freeze("slow")
            asyncio.get_running_loop().call_later(BUILD_S, swarm.network.thaw, "slow")
        return ExactStage(index, 1)

    swarm.peer("donor")
    swarm.trainer("t0", steps=10_000)
    await swarm.until(lambda: swarm.heads and swarm.heads[-1].step > 1)
    process = swarm.start_peer("slow", build, {**SECONDS, "build": BUILD_S})
    swarm._witness(process, swarm.endpoints["slow"])
    await swarm.until(lambda: process.peer.replica)
    await swarm.close()
    assert built == [0]
