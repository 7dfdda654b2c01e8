"""A whole swarm in one process on the virtual clock and network: the real actors, small exact stages, faults at will.

Parties by name: "directory", "watcher", peers, trainers. After any faults every peer's parameters
at a step are those of one process that took as many; `check` looks at all peers at once, and the watcher at each head.
"""

import asyncio
from collections import defaultdict

import numpy as np

from benchmarks.harness.memory_disk import MemoryDisk
from pipelined.state.stages.store import DamagedSave, StoreError
from pipelined.state.tensor_specs import specs_of
from pipelined.swarm.peer.device_watchdog import DeviceStalled
from pipelined.swarm.protocol.rounds import Reduce
from pipelined.swarm.records.steps import name_digest
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from tests.swarm.exact import ExactStage, Reference, data
from tests.swarm.virtual_parties import DIRECTORY, VirtualParties
from tests.virtual_time import virtual_seconds
from transports import Block
from transports.rpc.virtual.network import VirtualNetwork

SECONDS = {"forward": 0.01, "backward": 0.02, "update": 0.005}


FOR_EVER_S = 1e9
WRITE_S = 2e-3
SAVE_EVERY = 2


class MemoryStore:
    """A directory that outlives its peers.

    Attributes:
        damaged: the saved stages that cannot be read any more, though they are listed.
    """

    def __init__(self):
        self._saved, self.damaged = {}, set()

    def saved_stages(self):
        return list(self._saved)

    def save(self, saved, state):
        self._saved[saved] = state
        return ""

    def load(self, at, specs):
        states = [state for saved, state in self._saved.items() if saved.version == at.version]
        found = {name: block for state in states for name, block in state.items() if name in specs}
        for saved in self.damaged:
            if saved.version == at.version and self._saved[saved].keys() & specs.keys():
                raise DamagedSave("not the bytes that were saved", saved)
        if specs_of(found) != specs:
            raise StoreError(f"not all there: {found.keys()}")
        return found


class Skewed:
    """A party's clock that is wrong by so many seconds."""

    def __init__(self, clock, offset):
        self._clock, self._offset, self.sleep = clock, offset, clock.sleep

    def now(self):
        return self._clock.now() + self._offset


class VirtualSwarm(VirtualParties):
    """The parties, the network between them, and what each peer must equal.

    Where sums are coded with loss the whole is no single process's; then what peers must equal is one another.

    Attributes:
        heads: every step that was decided, as the watcher saw it.
        summed: by round, stage and peer, the microbatches that its sum held when it was summed.
    """

    def __init__(self, stages=2, batch=8, seed=0, **rules):
        common = {
            "model": "exact",
            "stages": stages,
            "batch": batch,
            "samples": batch,
            "lease_s": 1.0,
            "rebalance_s": 0.0,
        }
        super().__init__(VirtualNetwork(seed, delay=1e-3, jitter=5e-4), Rules(**common | rules))
        self.reference = Reference(stages, batch, self.rules.codec, self.rules.delayed)
        self.heads, self.summed = [], defaultdict(lambda: defaultdict(dict))
        self.slots, self._offsets, self._told, self._hung = 0, {}, {}, set()
        self._disk = MemoryDisk(lambda: self.network.clock(DIRECTORY).sleep(WRITE_S))
        self.start_directory()
        self.watcher, self.directory, clock = self.client("watcher")
        self.start("watcher", self._watch(SwarmView(self.directory, clock)))

    def start_directory(self):
        """Start it, or start it again from its journal."""
        super().start_directory(self._disk)

    def clock(self, name):
        return Skewed(super().clock(name), self._offsets.get(name, 0.0))

    def peer(self, name, stage=None, speed=1.0, offset=0.0, store=None, save_every=SAVE_EVERY):
        self._offsets[name] = offset
        seconds = {op: each / speed for op, each in SECONDS.items()}
        build = lambda index: ExactStage(index, self.rules.stages)  # noqa: E731
        process = self.start_peer(name, build, seconds, stage, store=store, save_every=save_every)
        self._witness(process, self.endpoints[name])

    def trainer(self, name, steps, slots=4, offset=0.0, balance=None, resume=False):
        self._offsets[name] = offset
        self.slots += slots
        self.start_trainer(name, data, slots, steps, balance=balance, resume=resume)

    def hang(self, name, *ops):
        """A peer's device gets stuck as soon as it is at work of these kinds, or at any; then it never does a thing."""
        device, clock, stuck = self.devices[name], self.network.clock(name), []
        self._hung.add(self.tasks[name])
        plain = device._compute

        async def compute(op, work):
            if stuck or not ops or op in ops:
                stuck.append(op)
                await clock.sleep(FOR_EVER_S)
            return await plain(op, work)

        device._compute = compute

    def check(self):
        """Every peer that holds a stage has the parameters that it must have at its step, to the bit."""
        for name, process in self.peers.items():
            replica = process.peer.replica
            if replica is not None:
                told = f"{name} at step {replica.step} of stage {replica.index}"
                assert np.array_equal(weights_of(replica), self._right(replica)), f"{told} differs"
                waiting = replica.load.waiting
                assert waiting <= self.slots, f"{told} has more to do than all trainers ask ({waiting} > {self.slots})"
        for name, task in self.tasks.items():
            if task.done() and not task.cancelled() and task.exception() is not None:
                if task in self._hung and isinstance(task.exception(), DeviceStalled):
                    continue
                raise AssertionError(f"{name} failed") from task.exception()

    async def finish(self, within):
        """Wait until every trainer has seen the last step; everything is checked at every twentieth of a second."""
        deadline = asyncio.get_running_loop().time() + within
        while not all(self.tasks[name].done() for name in self.trainers):
            self.check()
            assert asyncio.get_running_loop().time() < deadline, f"no end within {within} s: {self.describe()}"
            await virtual_seconds(0.05)
        self.check()

    async def until(self, holds, within=20.0):
        """Let it train until this holds; all is checked meanwhile."""
        async with asyncio.timeout(within):
            while not holds():
                self.check()
                await virtual_seconds(0.01)

    def _right(self, replica):
        """What one process has at this step; where sums lose bits, the state of the first peer that was seen there."""
        if not self.rules.sums_codec:
            return self.reference.weights(replica.step, replica.index)
        return self._told.setdefault((replica.version, replica.index), weights_of(replica).copy())

    def describe(self):
        held = {
            name: p.peer.replica and (p.peer.replica.index, p.peer.replica.step, p.peer.replica.counted)
            for name, p in self.peers.items()
        }
        left = {name: t.leader.report and t.leader.report.left for name, t in self.trainers.items()}
        heads = {name: t.view.head and t.view.head.step for name, t in self.trainers.items()}
        return f"peers (stage, step, counted): {held}; steps: {heads}; left: {left}"

    async def _watch(self, view):
        """Look at every head that is decided."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(view.follow())
            while True:
                await view.wait_for(lambda: view.head is not None and view.head not in self.heads[-1:])
                self.heads.append(view.head)
                self._check_head(view.head)

    def _check_head(self, head):
        """The step's sums held each microbatch of the batch once, at every stage; its loss is that of one process."""
        if not head.was_summed:
            return
        if not self.rules.sums_codec:
            self.reference.weights(head.step, 0)
            assert head.loss == self.reference.losses[head.step - 1], f"another loss at step {head.step}"
        for stage, members in enumerate(head.members):
            summed = {name_digest(name): indices for name, indices in self.summed[head.round][stage].items()}
            held = sorted(index for member in members for index in summed[member])
            assert held == list(range(self.rules.batch)), f"stage {stage} took step {head.step} with {held}"

    def _witness(self, process, endpoint):
        """Note what a peer's sum holds whenever it has summed."""
        plain = endpoint.handle

        def handle(topic, handler, *limits):
            plain(topic, noting(handler) if topic == "reduce" else handler, *limits)

        def noting(handler):
            async def reduce(request):
                response = await handler(request)
                replica, name = process.peer.replica, Reduce.parse(request)[0].round
                self.summed[str(name)][replica.index][replica.name] = frozenset(replica.counted)
                return response

            return reduce

        endpoint.handle = handle


def weights_of(replica):
    """What is held of the step that stands."""
    return np.asarray(Block.of(replica.stage.state()[f"{replica.index}/weights"]).numpy())
