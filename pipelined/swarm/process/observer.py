"""The observer: a process that serves no stage, and copies the state of every stage, all at one step.

The directory lists it as an observer, not as a peer. Peers send it states and totals as to a joining peer, checked by
hash. No decision of the swarm (rollback, rescue of a stage, placement, rebalancing) counts it.
"""

from collections.abc import Mapping
from typing import Any

from pipelined.actors.executor import Executor
from pipelined.aio.nursery import Nursery
from pipelined.directory.registration import registered
from pipelined.membership.node import Node
from pipelined.state.fetch import StateFetch
from pipelined.state.versions import SavedStage, Version
from pipelined.swarm.config import Rules
from pipelined.swarm.messaging.client import MemberClient, Probe
from pipelined.swarm.peer.stage_join import Build
from pipelined.swarm.records.members import OBSERVERS, Observer
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.stages.delayed import final_state, with_delayed_updates

SwarmSnapshot = list[tuple[SavedStage, Mapping[str, Any]]]
"""For each stage its version and its state, with every summed gradient applied."""


class SwarmObserver:
    """A process that copies the state of a swarm.

    Args:
        node: this process; its name is unique among the observers.
        build: builds a stage; its state is loaded afterwards.
    """

    def __init__(self, node: Node, build: Build, rules: Rules, device: Executor):
        self._node, self._build, self._rules, self._device = node, build, rules, device
        self._view = SwarmView(node.directory, node.clock)
        self._probe = Probe(MemberClient(node.endpoint, self._view), node.clock, rules.lease_s)

    async def snapshot(self) -> SwarmSnapshot:
        """The state of every stage at the committed step; waits while a stage has no peer.

        If a step is committed meanwhile, its totals are fetched and applied to the stages that were fetched before.

        Raises:
            LeaseLost, CutOff: the directory could not be reached for longer than a lease period.
        Cost: memory of all stages; their bytes once over the network.
        """
        async with Nursery() as tasks:
            following = tasks.create_task(self._view.follow())
            await self._view.wait_for(lambda: self._view.head)
            key, seconds = OBSERVERS + self._node.name, self._rules.lease_s
            async with registered(self._node.directory, key, seconds, self._node.clock) as registration:
                address = self._node.endpoint.address
                await registration.put(Observer(self._node.name, address, registration.incarnation))
                taken = await self._all()
            following.cancel()
        return taken

    async def _all(self) -> SwarmSnapshot:
        stages = [with_delayed_updates(self._build(index), self._rules.delayed) for index in range(self._rules.stages)]
        versions: list[Version | None] = [None] * len(stages)
        while any(version != self._view.version for version in versions):
            for index, stage in enumerate(stages):
                fetch = StateFetch(
                    stage,
                    index,
                    versions[index],
                    requester=self._node.name,
                    view=self._view,
                    probe=self._probe,
                    device=self._device,
                )
                versions[index] = await fetch.run()
        at = self._view.version
        saved_stages = [SavedStage(at.step, index, len(stages), at.lineage) for index in range(len(stages))]
        return [(saved, final_state(stage)) for saved, stage in zip(saved_stages, stages, strict=True)]
