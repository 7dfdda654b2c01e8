"""Ravnest under fire, in one process on the virtual clock: the real actors over a virtual network, faults at will.

Parties by name: "directory", "train" (which its operator starts again when it is cut off) and nodes. Whatever befalls
them, every step shown has the loss of plain loops that are averaged, ended and begun as the directory says, each step
is in the average at the end once, and that has the loops' bits: one microbatch is alive on each stage, so the order of
work is that of `plain_loops`.
"""

import asyncio
import gc
import math
import random
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import torch

from benchmarks.harness.memory_disk import MemoryDisk
from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import run_virtual
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import CutOff, EmbeddedDirectory, serve_directory
from pipelined.ravnest.forming.cluster_former import ClusterFormer
from pipelined.ravnest.node.node import Capacity, RavnestNode
from pipelined.ravnest.planning.plan import PoolRequest
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules
from pipelined.ravnest.records.generation import GENERATION
from pipelined.ravnest.records.view import RavnestView
from pipelined.training.optimizer import OptimizerConfig
from tests.numerics.plain import Case
from tests.numerics.ravnest import training_of
from tests.ravnest.faults import DIRECTORY, LEASE_S, TRAIN, Befallen, Fault
from tests.ravnest.invariants import Invariants, WatchedMember
from tests.ravnest.plain_loops import Chain
from tests.virtual_time import virtual_seconds
from transports.rpc.virtual.network import VirtualNetwork, address_of
from transports.rpc.world import Worlds

CASE = Case("async_1f1b", 3, 1, 1, tied=False, layers=1)
STEPS = 8
OPTIMIZER = OptimizerConfig(lr=1e-2, steps=STEPS, warmup=2, clip=0)
SECONDS = {"forward": 0.06, "backward": 0.12, "update": 0.02, "snapshot": 0.05, "average": 0.05}
AGAIN_S, RETURN_S, QUIET_S, PATIENCE_S = 0.3, 2.0, 3.0, 60.0
MAX_BYTES = 1 << 26
"""Of a message between nodes."""
THREAD = ThreadPoolExecutor(1)
"""Work runs there that may need a loop of its own."""
WATCHER = "watcher"


class Story(Befallen):
    """Two clusters, and what befalls them.

    Args:
        training: another one; what it must come to is then for the caller to check.
        ram: bytes of each node.
        steps, by_microbatches: where no other training is given.
        delay: seconds of a frame from one party to another.
        rate: bytes a second from one party to another.
        backups: how many of the nodes, the last ones, are backups.
        newcomers: see `PoolRequest`.
        resume: whether `train` goes on from what another run saved.
        kept: where nodes keep what they do, for all or by name; see `ClusterMember`.

    Attributes:
        planned: what nodes know of the bytes of places.
        shown: by (step, cluster) its losses, once for each time that it was trained.
        seen: the same by (number of the clusters, cluster, step).
        ends: what `train` said at the end.
        changes: of the records of `Chain.keys`, in order.
    """

    planned = None

    def __init__(
        self,
        nodes=3,
        seed=0,
        training=None,
        ahead=1,
        clusters=2,
        delay=1e-3,
        rate=math.inf,
        ram=1 << 20,
        resume=False,
        steps=STEPS,
        by_microbatches=False,
        backups=0,
        newcomers=None,
        **kept,
    ):
        names, network = [f"n{n}" for n in range(nodes)], VirtualNetwork(seed, delay=delay, jitter=delay / 2, rate=rate)
        super().__init__(names, network, seed)
        self.invariants = Invariants(self)
        self.nodes, self.shown, self.seen, self.ends, self._dead = {}, defaultdict(list), {}, [], []
        self._stack = ExitStack()
        self.disk = MemoryDisk(lambda: self.network.clock(DIRECTORY).sleep(2e-3))
        self._is_known, self._kept, self._ram, self._resume = training is None, kept, ram, resume
        known = training_of(CASE, steps, replace(OPTIMIZER, steps=steps), torch.float32, every=2)
        self.training = training or replace(known, by_microbatches=by_microbatches)
        layers = tuple(LayerSize(100, 8, 8, 1.0) for _ in range(self.training.model.layers))
        rules, nodes = StageRules(ahead=ahead), {"backups": backups, "newcomers": newcomers}
        self._request = PoolRequest((), layers, clusters=clusters, rules=rules, **nodes)

    async def run(self, *befalls):
        """Train to the end while these coroutines run; then check everything.

        Raises:
            AssertionError: with the whole story.
        """
        loop = asyncio.get_running_loop()
        loop.run_in_executor = at_once
        self.network.intercept(self.invariants.after)
        self._start(DIRECTORY)
        for name in [*self.names, WATCHER, TRAIN]:
            self._start(name)
        try:
            async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
                for befall in befalls:
                    tasks.create_task(befall)
                tasks.create_task(self._finished())
            self.invariants.hold()
            self._check()
        except (TimeoutError, AssertionError, BaseExceptionGroup) as error:
            raise AssertionError("\n".join([*self.told, *self.ends, repr(error)])) from error
        finally:
            for name in list(self.tasks):
                self._end(name)
            await asyncio.gather(*self._dead, return_exceptions=True)
        return self

    async def _finished(self):
        while not self.ends:
            for name, task in self.tasks.items():
                if task.done():
                    raise AssertionError(f"{name} ended: {task.exception()!r}") from task.exception()
            await virtual_seconds(0.05)

    def _check(self):
        if not self._is_known:
            return
        self.chain = Chain(self.training, self.changes)
        steps = defaultdict(set)
        for number, cluster, step in self.seen:
            steps[number, cluster].add(step)
        losses, digest = THREAD.submit(self.chain.trained, steps).result()
        for at, loss in self.seen.items():
            assert losses[at] == loss, f"clusters, cluster, step {at}: {loss}, not {losses[at]}"
        assert set(self.ends) == {f"average {digest}"}

    def _end(self, name):
        self.network.kill(name)
        self._dead.append(self.tasks.pop(name))

    def _start(self, name):
        endpoint, clock = self.network.endpoint(name), self.network.clock(name)
        if name == DIRECTORY:
            work = serve_directory(endpoint, clock, self.disk)
        else:
            local = LocalMember(
                name, endpoint, EmbeddedDirectory(endpoint, address_of(DIRECTORY), clock, LEASE_S), clock
            )
            work = self._work(name, local)
        self.tasks[name] = self.network.run(name, work)

    def _work(self, name, local):
        if name == WATCHER:
            self.view = RavnestView(local.directory, local.clock)
            self.changes = self._stack.enter_context(self.view.change_queue(Chain.keys))
            self.formed = self._stack.enter_context(self.view.change_queue((GENERATION,)))
            return self.view.follow()
        if name == TRAIN:
            return self._operate(local)
        kept = {key: of.get(name) if isinstance(of, dict) else of for key, of in self._kept.items()}
        member = self._member(name, local, kept)
        capacity = Capacity(self._ram, 1e6)
        self.nodes[name] = RavnestNode(local, member, capacity, LEASE_S, self._tell, planned_places=self.planned)
        return self.nodes[name].run()

    def _member(self, name, local, kept):
        """What trains in a node."""
        executor = TimedExecutor(SECONDS, local.clock)
        worlds = Worlds(local.endpoint, MAX_BYTES)
        return WatchedMember(self.training, worlds, executor, invariants=self.invariants, **kept)

    def own_steps_averaged(self, generation, number, round_):
        """See `RavnestTraining.own_steps_averaged`."""
        return replace(self.training, start=generation.start.step).own_steps_averaged(generation, number, round_)

    async def _operate(self, local):
        """Start `train`, and start it again when it is cut off."""
        while True:
            try:
                arguments = self._request, self._show, self.told.append, RETURN_S, self._resume
                await ClusterFormer(local, len(self.names), *arguments).run()
                self.ends.append(next(each for each in reversed(self.told) if each.startswith("average")))
                await asyncio.Event().wait()
            except CutOff as error:
                self._tell(f"train gave up: {error}")
            await local.clock.sleep(AGAIN_S)

    def _show(self, cluster, progress):
        self.shown[progress.step, cluster].append(progress.loss)
        assert self.seen.setdefault((progress.generation, cluster, progress.step), progress.loss) == progress.loss


async def at_once(executor, work, *arguments):
    """What a thread would do, in no time: a loop on virtual time waits for none."""
    return THREAD.submit(work, *arguments).result()


def tell(seed, **others):
    """Let one to four faults happen at random moments.

    Args:
        others: see `Story`.
    """
    draw = random.Random(seed)
    story = Story(draw.choice([3, 4]) + others.get("backups", 0), seed, **others)
    faults = [(draw.choice(list(Fault)), draw.uniform(0.0, QUIET_S)) for _ in range(draw.randint(1, 4))]
    run_virtual(story.run(*(story.befall(fault, moment) for fault, moment in faults)))
    return story


if __name__ == "__main__":
    gc.freeze()  # as in tests/conftest.py: a node collects garbage when it enters a cluster
    for seed in map(int, sys.argv[1:]):
        print("\n".join(tell(seed).told))
