"""The observer: a process that serves no stage, and copies the state of every stage, all at one step.

The directory lists it as an observer, not as a peer. Peers send it states and totals as to a joining peer, checked by
hash. No decision of the swarm (rollback, rescue of a stage, placement, rebalancing) counts it.
"""

from collections.abc import Mapping
from typing import Any

from pipelined.actors.executor import Device
from pipelined.aio.clock import Clock
from pipelined.aio.nursery import Nursery
from pipelined.directory import Directory
from pipelined.directory.registration import registered
from pipelined.membership.client import Asking
from pipelined.membership.probe import Probe
from pipelined.membership.records import OBSERVERS, Observer
from pipelined.state.fetch import Joining
from pipelined.state.manifest import Layout
from pipelined.state.versions import SavedStage, Version
from pipelined.swarm.config import Rules
from pipelined.swarm.peer.peer import Build
from pipelined.swarm.stages.delayed import late, settled
from pipelined.swarm.view import SwarmView
from transports.rpc import Endpoint

Snapshot = list[tuple[SavedStage, Mapping[str, Any]]]
"""For each stage its version and its state, with every summed gradient applied."""


class SwarmObserver:
    """A process that copies the state of a swarm.

    Args:
        name: unique in this swarm.
        build: builds a stage; its state is loaded afterwards.
    """

    def __init__(
        self,
        name: str,
        build: Build,
        rules: Rules,
        endpoint: Endpoint,
        directory: Directory,
        clock: Clock,
        device: Device,
    ):
        self.name, self._build, self._rules, self._clock, self._device = name, build, rules, clock, device
        self._endpoint, self._view = endpoint, SwarmView(directory, clock)
        self._asking = Asking(endpoint, self._view)
        self._probe = Probe(self._asking, clock, rules.lease_s)

    async def snapshot(self) -> Snapshot:
        """The state of every stage at the committed step; waits while a stage has no peer.

        If a step is committed meanwhile, its totals are fetched and applied to the stages that were fetched before.

        Raises:
            LeaseLost, CutOff: the directory could not be reached for longer than a lease period.
        Cost: memory of all stages; their bytes once over the network.
        """
        async with Nursery() as tasks:
            following = tasks.create_task(self._view.follow())
            await self._view.wait_for(lambda: self._view.head is not None)
            async with registered(
                self._view.directory, OBSERVERS + self.name, self._rules.lease_s, self._clock
            ) as place:
                await place.put(Observer(self.name, self._endpoint.address, place.incarnation))
                taken = await self._all()
            following.cancel()
        return taken

    async def _all(self) -> Snapshot:
        stages = [late(self._build(index), self._rules.delayed) for index in range(self._rules.stages)]
        versions: list[Version | None] = [None] * len(stages)
        while any(version != self._view.head.version for version in versions):
            for index, stage in enumerate(stages):
                ways = self._view, self._asking, self._probe, self._device, _nowhere
                versions[index] = await Joining(self.name, stage, index, versions[index], *ways).arrive()
        at = self._view.head.version
        saved_stages = [SavedStage(at.step, index, len(stages), at.lineage) for index in range(len(stages))]
        return [(saved, settled(stage)) for saved, stage in zip(saved_stages, stages, strict=True)]


async def _nowhere(version: Version, layout: Layout) -> None:
    """An observer looks for no saved state: it fetches from peers only."""
