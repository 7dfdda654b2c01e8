"""A swarm of peers that are weighed: all tensors, arrays and copies that each holds, also within a piece of work.

Nothing is computed from sizes. Torch's storages are seen at each operation; the arrays of totals and copies are found
from the peer's replica and its work. Messages are not counted.
"""

import asyncio
import gc
import math
from collections import deque

import numpy as np
import torch

from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.membership.connection import LocalMember
from pipelined.swarm.peer.components import PeerSetup
from pipelined.swarm.process.peer_process import torch_peer
from tests.ravnest.counted import Seen
from tests.swarm.virtual_parties import VirtualParties
from transports import Block
from transports.rpc.virtual.network import VirtualNetwork

SECONDS = {"forward": 0.01, "backward": 0.02, "update": 0.005}
OWN = "pipelined.swarm.peer", "pipelined.swarm.stages", "pipelined.state"
"""Objects of these packages are looked into."""


def arrays_of(*roots):
    """The bytes of all arrays and copies that are reached from these objects, by address."""
    found, waiting, seen = {}, [*roots], set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        match one:
            case np.ndarray():
                base = one if one.base is None else one.base
                waiting += [] if base is one else [base]
                if base is one:
                    found[one.__array_interface__["data"][0]] = one.nbytes
            case bytearray() if one:
                found[np.frombuffer(one, np.uint8).__array_interface__["data"][0]] = len(one)
            case memoryview():
                waiting.append(one.obj)
            case torch.Tensor():
                storage = one.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes()
            case asyncio.Future() if one.done() and not one.cancelled() and not one.exception():
                waiting.append(one.result())
            case Block():
                waiting.append(one.data)
            case dict() | list() | tuple() | set() | deque():
                waiting += gc.get_referents(one)
            case _ if type(one).__module__.startswith(OWN):
                waiting += gc.get_referents(one)
            case _ if getattr(one, "__closure__", None):
                waiting += [cell.cell_contents for cell in one.__closure__]
    return found


class SeenWithin(Seen):
    """Calls `look` after each operation of torch."""

    def __init__(self, look):
        super().__init__()
        self._look = look

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = super().__torch_dispatch__(func, types, args, kwargs)
        self._look()
        return found

    @property
    def storages(self):
        self._storages = {at: one for at, one in self._storages.items() if one[1]() is not None}
        return {at: nbytes for at, (nbytes, _) in self._storages.items()}


class WeighingExecutor(TimedExecutor):
    """Attributes: `held` is the most bytes at any moment, `at` the work then, `replica` of the peer if it has one.

    Args:
        most: bytes of its memory, as a function; None: it has as much as is needed.
    """

    def __init__(self, clock, most=None):
        super().__init__(SECONDS, clock)
        self.held, self.at, self._arrays, self._op = 0, "", {}, ""
        self._most, self._limit = most, math.inf
        self.replica = lambda: None

    async def run(self, op, work, report_at_once=True):
        seen = SeenWithin(lambda: self._weigh(seen.storages))

        def weighed():
            self._op, self._arrays = op, arrays_of(self.replica(), work)
            self._limit = self._most() if self._most and self.planned_memory else math.inf
            with seen:
                found = work()
            self._arrays = arrays_of(self.replica(), work, found)
            self._weigh({})
            return found

        return await super().run(op, weighed, report_at_once)

    def _weigh(self, storages):
        held = sum((self._arrays | storages).values())
        if held > self._limit:
            raise MemoryError(f"{held} bytes")
        if held > self.held:
            self.held, self.at = held, self._op


class WeighedSwarm(VirtualParties):
    """Peers as `apps.swarm serve` makes them, on devices that are weighed.

    Args:
        session: of all of them.
    """

    def __init__(self, session):
        super().__init__(VirtualNetwork(0, delay=1e-3, jitter=5e-4), session.rules)
        self.session = session
        self.start_directory()

    def weighed_peer(self, name, stage, most=None, store=None):
        """Start a peer; `most` is called with its device for the bytes of its memory."""
        local = LocalMember(name, *self.client(name))
        device = self.devices[name] = WeighingExecutor(local.clock, most and (lambda: most(device)))
        config = PeerSetup(stage=stage, store=store, save_every=1, threads=False)
        process = self.peers[name] = torch_peer(local, self.session, device, config)
        device.replica = lambda: process.peer.replica
        self.start(name, process.run())
