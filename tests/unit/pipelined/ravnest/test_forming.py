"""`train` lets others go on after a lost cluster, unless all clusters have trained their last step meanwhile."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from pipelined.aio.clock import VirtualClock
from pipelined.directory import EmbeddedDirectory, serve_directory
from pipelined.directory.registration import registered
from pipelined.membership.node import Node
from pipelined.ravnest.forming import ClusterFormer
from pipelined.ravnest.planning.plan import PoolRequest
from pipelined.ravnest.records import (
    CLUSTERS,
    ENDING,
    NODES,
    PROGRESS,
    STOPPED,
    ClusterProgress,
    Clusters,
    ClustersEnding,
    ClusterStop,
    NodeRecord,
    StagePlace,
)
from transports.rpc.virtual.network import VirtualNetwork, address_of

pytestmark = pytest.mark.virtual


class SlowWriter(EmbeddedDirectory):
    """A client of which each write of clusters arrives after another process wrote something."""

    async def transact(self, expect, put=(), *more):
        if CLUSTERS in put:
            await self.meanwhile()
        return await super().transact(expect, put, *more)


async def test_clusters_that_are_done_meanwhile_are_followed_by_none():
    """The digest of a lost cluster arrives when `train`, which has not seen it, writes the clusters that go on."""
    async with AsyncExitStack() as stack:
        network, clock, said = VirtualNetwork(), VirtualClock(), []
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        serving = tasks.create_task(serve_directory(network.endpoint("directory"), clock))
        stack.callback(serving.cancel)
        node, train = (network.endpoint(name) for name in ("a", "train"))
        directory = EmbeddedDirectory(node, address_of("directory"), clock)
        registration = await stack.enter_async_context(registered(directory, NODES + "a", 1.0, clock, "at a"))
        await registration.put(NodeRecord("a", "at a", registration.incarnation, 1, 1.0, 0.0))
        left, lost = StagePlace("a", "at a", registration.incarnation, 0, 3, 1), StagePlace("b", "at b", 99, 0, 3, 1)
        clusters, done = Clusters(1, [[left], [lost]]), ClusterProgress(1, 3, 0.5, [], 0.1, "digest").pack()
        begun = {CLUSTERS: clusters.pack(), ENDING: ClustersEnding(1).pack(), f"{PROGRESS}0": done}
        await directory.transact({}, {**begun, f"{STOPPED}0": ClusterStop(1, 4, []).pack()})
        slow = SlowWriter(train, address_of("directory"), clock)
        slow.meanwhile = lambda: directory.transact({}, {f"{PROGRESS}1": done})
        former = ClusterFormer(Node("train", train, slow, clock), 1, PoolRequest((), ()), print, said.append)
        await former.run()
        assert said[-1] == "average digest"
        assert (await directory.read(CLUSTERS)).entries[CLUSTERS].value == clusters.pack()
