"""The processes of a swarm in one process: the code of real machines, over a virtual network.

Only network, clock and device differ from real machines, so the observed behaviour is that of the system.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

from benchmarks.harness.memory_disk import MemoryDisk
from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.aio.clock import Clock
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import EmbeddedDirectory, serve_directory
from pipelined.state.stages.store import CheckpointStore
from pipelined.swarm.leader.reassignment import Rebalance
from pipelined.swarm.peer.components import PeerSetup
from pipelined.swarm.peer.stage_join import Build
from pipelined.swarm.process.peer_process import PeerProcess
from pipelined.swarm.process.trainer_process import TrainerProcess
from pipelined.swarm.rules import Rules
from pipelined.swarm.trainer.trainer import Data
from transports.rpc import Endpoint
from transports.rpc.virtual.network import VirtualNetwork, address_of

DIRECTORY = "directory"


class VirtualParties:
    """The processes ("parties") of one swarm, by name; used inside one running loop, on the virtual clock.

    Args:
        network: between them.
        rules: of the parties that start while this value is set.
        patience: seconds without a reply from the directory after which a party is cut off.

    Attributes:
        peers, trainers: the running ones, by name.
        devices: the peers' devices, by name; also of killed peers.
        endpoints: the last endpoint of each name.
        tasks: of all running parties, including the directory.
        dead: tasks of killed parties.
    """

    def __init__(self, network: VirtualNetwork, rules: Rules, patience: float = 1.0):
        self.network, self.rules, self._patience = network, rules, patience
        self.peers, self.trainers = dict[str, PeerProcess](), dict[str, TrainerProcess]()
        self.devices, self.endpoints = dict[str, TimedExecutor](), dict[str, Endpoint]()
        self.tasks, self.dead = dict[str, "asyncio.Task[Any]"](), list["asyncio.Task[Any]"]()

    def start_directory(self, disk: MemoryDisk | None = None) -> None:
        """Start the directory, or start it again from its journal; without a disk it has no journal."""
        endpoint = self.endpoints[DIRECTORY] = self.network.endpoint(DIRECTORY)
        self.start(DIRECTORY, serve_directory(endpoint, self.network.clock(DIRECTORY), disk))

    def start_peer(
        self,
        name: str,
        build: Build,
        seconds: Mapping[str, float],
        stage: int | None = None,
        *,
        store: CheckpointStore | None = None,
        save_every: int = 0,
    ) -> PeerProcess:
        """Start a peer with a device that takes these seconds for each op; see `PeerProcess`."""
        local = LocalMember(name, *self.client(name))
        device = self.devices[name] = self.device(seconds, local.clock)
        config = PeerSetup(stage=stage, store=store, save_every=save_every, threads=False)
        process = self.peers[name] = PeerProcess(local, build, self.rules, device, config)
        self.start(name, process.run())
        return process

    def start_trainer(
        self,
        name: str,
        data: Data,
        slots: int,
        steps: int | None = None,
        *,
        balance: Rebalance | None = None,
        resume: bool = False,
    ) -> TrainerProcess:
        """Start a trainer; see `TrainerProcess`."""
        local = LocalMember(name, *self.client(name))
        process = self.trainers[name] = TrainerProcess(
            local, data, self.rules, slots=slots, steps=steps, balance=balance, resume=resume
        )
        self.start(name, process.run())
        return process

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Run this as a party; it begins when the loop turns."""
        self.tasks[name] = self.network.run(name, work)

    def client(self, name: str) -> tuple[Endpoint, EmbeddedDirectory, Clock]:
        """A party's endpoint, its client of the directory, and its clock."""
        endpoint, clock = self.network.endpoint(name), self.clock(name)
        self.endpoints[name] = endpoint
        return endpoint, EmbeddedDirectory(endpoint, address_of(DIRECTORY), clock, self._patience), clock

    def device(self, seconds: Mapping[str, float], clock: Clock) -> TimedExecutor:
        """The device of a peer."""
        return TimedExecutor(seconds, clock)

    def clock(self, name: str) -> Clock:
        """A party's clock."""
        return self.network.clock(name)

    def kill(self, name: str) -> None:
        """End a party as `kill -9` does."""
        self.network.kill(name)
        self.dead.append(self.tasks.pop(name))
        self.peers.pop(name, None)
        self.trainers.pop(name, None)

    async def close(self) -> None:
        """Kill all parties; their results and errors are ignored."""
        for name in list(self.tasks):
            self.kill(name)  # a frozen party would not receive its cancellation
        await asyncio.gather(*self.dead, return_exceptions=True)
