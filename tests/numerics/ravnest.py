"""Ravnest in one process, on a virtual network and a real loop: a directory, nodes, and what forms clusters."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import open_directory
from pipelined.membership.directory.server.serve import serve_directory
from pipelined.ravnest.forming.cluster_former import ClusterFormer
from pipelined.ravnest.node.cluster_member import ClusterMember
from pipelined.ravnest.node.node import Capacity, RavnestNode
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.planning.plan import PoolRequest
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules
from pipelined.traces.tracer import Tracer
from pipelined.training.job.numerics import Numerics
from tests.numerics.plain import SEQUENCE, Feed
from transports import new_event_loop
from transports.rpc.virtual.network import VirtualNetwork, address_of
from transports.rpc.world import Worlds

LEASE_S = 5.0


def training_of(case, steps, optimizer_settings, dtype, every=1):
    """What all clusters train."""
    return RavnestTraining(
        model=case.model,
        feed=Feed(),
        steps=steps,
        every=every,
        microbatch_size=2,
        microbatches=case.microbatches,
        optimizer_settings=optimizer_settings,
        numerics=Numerics(dtype=dtype),
        sequence=SEQUENCE,
        seed=3,
    )


class Together:
    """A directory and nodes, each a task; `nodes` and `tracers` by name."""

    def __init__(self, training, nodes, ahead=None):
        self.training, self.names = training, [f"n{number}" for number in range(nodes)]
        self.network = VirtualNetwork(delay=0.0)
        self.tracers = {name: Tracer(RealClock().now) for name in self.names}
        self.said, self.steps, self.nodes = [], [], {}
        layers = tuple(LayerSize(100, 8, 8, 1.0) for _ in range(training.model.layers))
        self.request = PoolRequest((), layers, clusters=1, rules=StageRules(ahead=ahead))

    async def run(self, clusters=1):
        """Train to the last step; returns the (cluster, progress) of each step."""
        request = PoolRequest((), self.request.layers, clusters=clusters, rules=self.request.rules)
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(_cancelled_at_end())
            directory = self.network.endpoint("directory")
            tasks.append(asyncio.ensure_future(serve_directory(directory, RealClock())))
            tasks += [asyncio.ensure_future(self._local(name)) for name in self.names]
            async with self._as_member("former") as local:
                former = ClusterFormer(local, len(self.names), request, self._on_step, self.said.append)
                running = asyncio.ensure_future(former.run())
                await asyncio.wait([running, *tasks], return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    if task.done():
                        task.result()
                await running
        return self.steps

    @property
    def generation(self):
        return self.nodes[self.names[0]].view.generation

    def _on_step(self, cluster, progress):
        self.steps.append((cluster, progress))

    async def _local(self, name):
        executor = TorchExecutor("cpu", RealClock())
        try:
            async with self._as_member(name) as local:
                member = ClusterMember(self.training, Worlds(local.endpoint, 1 << 26), executor, self.tracers[name])
                capacity = Capacity(1 << 20, 1e6)
                self.nodes[name] = RavnestNode(local, member, capacity, LEASE_S, self.said.append)
                await self.nodes[name].run()
        finally:
            executor.close()

    @asynccontextmanager
    async def _as_member(self, name):
        endpoint = self.network.endpoint(name)
        async with open_directory(address_of("directory"), endpoint, RealClock()) as directory:
            yield LocalMember(name, endpoint, directory, RealClock())


@asynccontextmanager
async def _cancelled_at_end():
    tasks = []
    try:
        yield tasks
    finally:
        for task in reversed(tasks):  # the directory last, as it ends the nodes' leases
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def trained(together, clusters=1):
    """Run it on a loop of its own."""

    async def limited():
        async with asyncio.timeout(30):
            return await together.run(clusters)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(limited())
