"""Every kind of directory keeps every clause."""

import asyncio

import pytest

from pipelined.clock import VirtualClock, run_virtual
from pipelined.swarm.directory import EmbeddedDirectory, serve_directory
from tests.conformance.directories import EVERYWHERE, WHERE_CONNECTIONS_TELL, Party
from transports.endpoints.virtual import VirtualNetwork


async def on_a_virtual_network(clause):
    network, clock = VirtualNetwork(seed=1), VirtualClock()
    async with asyncio.TaskGroup() as tasks, network.endpoint("directory") as end:
        serving = tasks.create_task(serve_directory(end, clock))
        async with network.endpoint("one") as one, network.endpoint("other") as other:
            await clause(*(Party(EmbeddedDirectory(party, end.address, clock), clock, party) for party in (one, other)))
        serving.cancel()


@pytest.mark.parametrize("clause", EVERYWHERE | WHERE_CONNECTIONS_TELL)
def test_embedded_on_a_virtual_network(clause):
    run_virtual(on_a_virtual_network((EVERYWHERE | WHERE_CONNECTIONS_TELL)[clause]))
