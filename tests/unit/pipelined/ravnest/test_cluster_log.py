"""A node writes about its cluster only while its incarnation is listed and its clusters are the last."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from pipelined.aio.clock import VirtualClock
from pipelined.directory import EmbeddedDirectory, serve_directory
from pipelined.directory.registration import registered
from pipelined.membership.view import NoLongerValid
from pipelined.ravnest.cluster_log import ClusterLog
from pipelined.ravnest.records import CLUSTERS, NODES, ROUND, Clusters, NodeRecord, RoundRecord, StagePlace
from pipelined.ravnest.view import RavnestView
from transports.rpc.virtual.network import VirtualNetwork, address_of

pytestmark = pytest.mark.virtual


async def story(stack):
    """A directory, and a node in a cluster of its own: the directory, its registration, its log and its view."""
    network, clock = VirtualNetwork(), VirtualClock()
    tasks = await stack.enter_async_context(asyncio.TaskGroup())
    running = [tasks.create_task(serve_directory(network.endpoint("directory"), clock))]
    directory = EmbeddedDirectory(network.endpoint("a"), address_of("directory"), clock)
    view = RavnestView(directory, clock)
    running.append(tasks.create_task(view.follow()))
    stack.callback(lambda: [task.cancel() for task in running])
    registration = await stack.enter_async_context(registered(directory, NODES + "a", 1.0, clock, "at a"))
    await registration.put(NodeRecord("a", "at a", registration.incarnation, 1, 1.0, 0.0))
    clusters = Clusters(1, [[StagePlace("a", "at a", registration.incarnation, 0, 3, 1)]])
    await directory.transact({}, {CLUSTERS: clusters.pack()})
    await view.wait_for(lambda: view.stands(clusters))
    return directory, registration, ClusterLog(view, registration, clusters, 0), view


async def test_a_round_is_written_and_stands():
    async with AsyncExitStack() as stack:
        _, _, log, _ = await story(stack)
        await log.write(1)
        await log.stands(1)


async def test_a_node_that_lost_its_lease_writes_nothing():
    async with AsyncExitStack() as stack:
        directory, registration, log, _ = await story(stack)
        await registration.lease.revoke()
        with pytest.raises(NoLongerValid, match="has left its cluster"):
            await log.write(1)
        assert ROUND not in (await directory.read(ROUND)).entries


async def test_a_node_writes_nothing_about_clusters_that_others_followed():
    async with AsyncExitStack() as stack:
        directory, _, log, view = await story(stack)
        newer = Clusters(9, [[StagePlace("b", "at b", 99, 0, 3, 1)]])
        await directory.transact({}, {CLUSTERS: newer.pack(), ROUND: RoundRecord(9, 4).pack()})
        with pytest.raises(NoLongerValid):
            await log.write(1)
        await view.wait_for(lambda: view.rounds_of(newer) == 4)
