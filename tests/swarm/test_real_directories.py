"""Real processes train while their directory is struck: the coordinator, or one of three members of etcd."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.etcd_cluster import EtcdCluster, needs_etcd
from tests.swarm.real_swarm import check, coordinator, train

PEERS = ["s0a", "s1a", "s2a", "s2b"]


@pytest.mark.in_turns(4)
@pytest.mark.timeout(120)
def test_a_coordinator_that_is_killed_and_started_again_costs_no_step(tmp_path):
    async def struck():
        async with AsyncExitStack() as stack:
            first, address = await coordinator(stack, journal=str(tmp_path / "journal"))

            async def befall():
                first.child.kill()
                first.child.wait()
                _, again = await coordinator(stack, address, str(tmp_path / "journal"))
                assert again == address

            return await train({}, peers=PEERS, at=address, befall=befall)

    check(*asyncio.run(struck()), {})


@pytest.mark.in_turns(4)
@pytest.mark.timeout(120)
def test_a_member_of_etcd_that_dies_costs_no_step(tmp_path):
    needs_etcd()
    with EtcdCluster(tmp_path) as cluster:

        async def befall():
            cluster.kill(0)

        check(*asyncio.run(train({}, peers=PEERS, at=cluster.url("swarm"), befall=befall)), {})
