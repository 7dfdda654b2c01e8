"""Ravnest in one process on the virtual clock, and nothing befalls it: the real actors, with what was seen and when.

What is computed is real and only time is not: devices take given times, lines have given rates and delays. So the
figures are the same on any machine.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from benchmarks.harness.memory_disk import MemoryDisk
from benchmarks.harness.timed_executor import TimedExecutor
from benchmarks.ravnest.fair_network import FairNetwork
from pipelined.aio.clock import Clock, run_virtual
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.ravnest.forming.cluster_former import ClusterFormer
from pipelined.ravnest.node.cluster_member import ClusterMember
from pipelined.ravnest.node.node import Capacity, RavnestNode
from pipelined.ravnest.node.ravnest_training import RavnestTraining
from pipelined.ravnest.planning.plan import PoolRequest
from pipelined.ravnest.planning.pool import NewcomerRole
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules
from pipelined.ravnest.records.generation import Generation
from pipelined.ravnest.records.progress import ClusterProgress
from pipelined.ravnest.records.view import RavnestView
from tests.ravnest.story import at_once
from transports.rpc.virtual.network import address_of
from transports.rpc.world import Worlds

DIRECTORY, TRAIN = "directory", "train"
LEASE_S = 600.0
MAX_BYTES = 1 << 28
T = TypeVar("T")


class Seen(NamedTuple):
    """A step that `train` saw; the time is virtual."""

    time_s: float
    cluster: int
    progress: ClusterProgress


class NotingExecutor(TimedExecutor):
    """Notes when each kind of work began first."""

    def __init__(self, seconds: Mapping[str, float], clock: Clock):
        super().__init__(seconds, clock)
        self.first = dict[str, float]()

    async def run(self, op: str, work: Callable[[], T], report_at_once: bool = True) -> tuple[T, float, float]:
        self.first.setdefault(op, self.clock.now())
        return await super().run(op, work, report_at_once)


@dataclass
class Party:
    """A directory, nodes, and what forms clusters of them.

    Args:
        nodes: that come at the beginning.
        ahead: microbatches alive in a first stage.
        seconds: of each kind of a device's work.
        rate: bytes a second of each node's line, each way; 0: no limit.
        delay_s: of a frame; `directory_s` more to and from the directory.
        newcomers: see `PoolRequest`.
        ram: bytes of each node, where a layer has 100 numbers and 8 bytes of activations.
        keeps: what else a `ClusterMember` takes: where to save, where to keep orders.

    Attributes:
        seen: the steps, in order.
        formed: when a generation was written, by its number, and which.
        executors: by node.
    """

    training: RavnestTraining
    nodes: Sequence[str]
    clusters: int | None
    ahead: int
    seconds: Mapping[str, float]
    rate: float = 0.0
    delay_s: float = 1e-3
    directory_s: float = 0.0
    newcomers: NewcomerRole | None = None
    ram: int = 1 << 20
    keeps: Mapping[str, Any] = field(default_factory=dict)
    seen: list[Seen] = field(default_factory=list)
    formed: dict[int, tuple[float, Generation]] = field(default_factory=dict)
    executors: "dict[str, NotingExecutor]" = field(default_factory=dict)

    def run(self, *beside: "Coroutine[Any, Any, None]") -> "Party":
        """Train to the last step, while these run."""
        run_virtual(self._run(*beside))
        return self

    async def _run(self, *beside: "Coroutine[Any, Any, None]") -> None:
        loop = asyncio.get_running_loop()
        loop.run_in_executor = at_once
        self.network = FairNetwork(delay=self.delay_s)
        if self.directory_s:
            self.network.add_delay(DIRECTORY, self.directory_s)
        disk = MemoryDisk(partial(asyncio.sleep, 0))
        endpoint = self.network.endpoint(DIRECTORY)
        self._tasks = [self.network.run(DIRECTORY, serve_directory(endpoint, self.network.clock(DIRECTORY), disk))]
        for name in self.nodes:
            self.join(name)
        local = self._local(TRAIN)
        self.view = RavnestView(local.directory, local.clock)
        self._tasks += [asyncio.ensure_future(work) for work in (self.view.follow(), self._watch(), *beside)]
        sizes = LayerSize(100, 8, 8, 1.0)
        layers = (sizes,) * self.training.model.layers
        rules = StageRules(ahead=self.ahead)
        request = PoolRequest((), layers, clusters=self.clusters, rules=rules, newcomers=self.newcomers)
        former = ClusterFormer(local, len(self.nodes), request, self._show, lambda _: None)
        running = asyncio.ensure_future(former.run())
        try:
            await self._end_of(running)
        finally:
            running.cancel()
            for task in reversed(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _end_of(self, running: "asyncio.Task[None]") -> None:
        """Wait until all is trained. Raises: what a party raised; else the others would wait for it for ever."""
        while not running.done():
            under_way = [running, *(task for task in self._tasks if not task.done())]
            done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    def join(self, name: str) -> None:
        """Start one more node."""
        if self.rate:
            self.network.set_access_rate(name, self.rate)
        local = self._local(name)
        worlds = Worlds(local.endpoint, MAX_BYTES)
        self.executors[name] = executor = NotingExecutor(self.seconds, local.clock)
        member = ClusterMember(self.training, worlds, executor, **self.keeps)
        capacity = Capacity(self.ram, self.rate or 1e9, 1e6)
        work = RavnestNode(local, member, capacity, LEASE_S, lambda _: None).run()
        self._tasks.append(self.network.run(name, work))

    def _local(self, name: str) -> LocalMember:
        endpoint, clock = self.network.endpoint(name), self.network.clock(name)
        return LocalMember(name, endpoint, EmbeddedDirectory(endpoint, address_of(DIRECTORY), clock, LEASE_S), clock)

    async def _watch(self) -> None:
        """Note the generations that are written."""
        while True:
            await self.view.wait_for(lambda: self.view.generation and self.view.generation.number not in self.formed)
            generation = self.view.generation
            assert generation is not None
            self.formed[generation.number] = asyncio.get_running_loop().time(), generation

    def _show(self, cluster: int, progress: ClusterProgress) -> None:
        self.seen.append(Seen(asyncio.get_running_loop().time(), cluster, progress))
