"""A whole swarm in one process on the virtual clock and network: the real actors, small exact stages, faults at will.

Parties by name: "directory", peers, trainers. The one rule: whatever befalls them, every peer's parameters at a step
are those of one process that took as many; `check` looks at all peers at once.
"""

import asyncio

import numpy as np

from pipelined.device import TimedDevice
from pipelined.swarm.directory import EmbeddedDirectory, serve_directory
from pipelined.swarm.processes import PeerProcess, TrainerProcess
from pipelined.swarm.rules import Rules
from tests.swarm.exact import ExactStage, Reference, data
from transports.endpoints.virtual import VirtualNetwork

SECONDS = {"forward": 0.01, "backward": 0.02, "step": 0.005}


class VirtualSwarm:
    """The parties, the network between them, and what each peer must equal."""

    def __init__(self, stages=2, batch=8, seed=0, **rules):
        self.network = VirtualNetwork(seed, delay=1e-3, jitter=5e-4)
        common = {
            "model": "exact",
            "stages": stages,
            "batch": batch,
            "samples": batch,
            "lease_s": 1.0,
            "rebalance_s": 0.0,
        }
        self.rules = Rules(**common | rules)
        self.reference = Reference(stages, batch)
        self.peers, self.trainers, self.tasks, self.dead = {}, {}, {}, []
        self._start("directory", serve_directory(self.network.endpoint("directory"), self.network.clock("directory")))

    def peer(self, name, stage=None, speed=1.0):
        endpoint, directory, clock = self._client(name)
        device = TimedDevice({op: seconds / speed for op, seconds in SECONDS.items()}, clock)
        build = lambda index: ExactStage(index, self.rules.stages)  # noqa: E731
        process = PeerProcess(name, build, self.rules, endpoint, directory, clock, device, stage, threads=False)
        self.peers[name] = process
        self._start(name, process.run())

    def trainer(self, name, steps, slots=4):
        endpoint, directory, clock = self._client(name)
        self.trainers[name] = TrainerProcess(name, data, self.rules, endpoint, directory, clock, slots, steps)
        self._start(name, self.trainers[name].run())

    def kill(self, name):
        self.network.kill(name)
        self.dead.append(self.tasks.pop(name))
        self.peers.pop(name, None)
        self.trainers.pop(name, None)

    def check(self):
        """Every peer that holds a stage equals the reference at its step, to the bit."""
        for name, process in self.peers.items():
            holding = process.peer.holding
            if holding is not None:
                weights = self.reference.weights(holding.step, holding.index)
                told = f"{name} at step {holding.step} of stage {holding.index}"
                assert np.array_equal(holding.stage.weights, weights), f"{told} differs from one process"
        for name, task in self.tasks.items():
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise AssertionError(f"{name} failed") from task.exception()

    async def finish(self, within):
        """Wait until every trainer has seen the last step; everything is checked at every twentieth of a second."""
        deadline = asyncio.get_running_loop().time() + within
        while not all(self.tasks[name].done() for name in self.trainers):
            self.check()
            assert asyncio.get_running_loop().time() < deadline, f"no end within {within} s: {self.describe()}"
            await asyncio.sleep(0.05)
        self.check()

    async def close(self):
        tasks = [*self.tasks.values(), *self.dead]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def describe(self):
        held = {
            name: p.peer.holding and (p.peer.holding.index, p.peer.holding.step, p.peer.holding.counted)
            for name, p in self.peers.items()
        }
        boards = {name: t.leadership.left for name, t in self.trainers.items()}
        heads = {name: t.roster.head and t.roster.head.step for name, t in self.trainers.items()}
        return f"peers (stage, step, counted): {held}; steps: {heads}; left: {boards}"

    def _start(self, name, coroutine):
        self.tasks[name] = self.network.run(name, coroutine)

    def _client(self, name):
        endpoint, clock = self.network.endpoint(name), self.network.clock(name)
        return endpoint, EmbeddedDirectory(endpoint, "virtual://directory", clock, patience=1.0), clock
