"""Every kind of directory keeps every clause."""

import asyncio

import pytest

from pipelined.aio.clock import RealClock, VirtualClock, run_virtual
from pipelined.membership.directory import open_directory, serve_directory
from tests.conformance.directories import EVERYWHERE, WHERE_CONNECTIONS_TELL, Party
from transports.rpc import open_endpoint
from transports.rpc.virtual.network import VirtualNetwork

EMBEDDED = EVERYWHERE | WHERE_CONNECTIONS_TELL


async def held(clause, clock, url, *endpoints, lease_s):
    """Hold two clients to a clause."""
    directories = [open_directory(url, endpoint, clock) for endpoint in endpoints]
    parties = [Party(*each, clock, lease_s) for each in zip(directories, endpoints, strict=True)]
    try:
        await clause(*parties)
    finally:
        for directory in directories:
            await directory.close()


async def on_a_virtual_network(clause):
    network, clock = VirtualNetwork(seed=1), VirtualClock()
    async with asyncio.TaskGroup() as tasks, network.endpoint("directory") as end:
        serving = tasks.create_task(serve_directory(end, clock))
        async with network.endpoint("one") as one, network.endpoint("other") as other:
            await held(clause, clock, end.address, one, other, lease_s=3.0)
        serving.cancel()


async def over_tcp(clause, journal):
    clock = RealClock()
    async with asyncio.TaskGroup() as tasks, await open_endpoint("tcp://127.0.0.1:0") as end:
        serving = tasks.create_task(serve_directory(end, clock, journal))
        async with await open_endpoint("tcp://127.0.0.1:0") as one, await open_endpoint("tcp://127.0.0.1:0") as other:
            await held(clause, clock, end.address, one, other, lease_s=0.4)
        serving.cancel()


@pytest.mark.parametrize("clause", EMBEDDED)
def test_embedded_on_a_virtual_network(clause):
    run_virtual(on_a_virtual_network(EMBEDDED[clause]))


@pytest.mark.parametrize("clause", EMBEDDED)
def test_embedded_over_tcp_with_a_journal(clause, memory_path):
    asyncio.run(over_tcp(EMBEDDED[clause], memory_path / "journal"))


@pytest.mark.parametrize("clause", EVERYWHERE)
def test_etcd(clause, etcd):
    asyncio.run(held(EVERYWHERE[clause], RealClock(), etcd.url(clause), None, None, lease_s=1.0))
