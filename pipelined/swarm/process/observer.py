"""The observer: a process that serves no stage, and copies the state of every stage, all at one step.

The directory lists it as an observer, not as a peer. Peers send it states and totals as to a joining peer, checked by
hash. No decision of the swarm (rollback, reassignment, rebalancing) counts it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pipelined.actors.device.executor import Executor, TorchExecutor
from pipelined.membership.connection import LocalMember
from pipelined.membership.directory import LeaseLost
from pipelined.membership.messaging.client import MemberClient, Probe
from pipelined.membership.registration import registered
from pipelined.membership.view import RETRY_S
from pipelined.process.reporting.events import warn
from pipelined.state.stages.fetch import StateFetch
from pipelined.state.stages.versions import SavedStage, Version
from pipelined.swarm.peer.stage_join import Build
from pipelined.swarm.process.session import SwarmSession
from pipelined.swarm.records.members import OBSERVERS, ObserverRecord
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from pipelined.swarm.stages.delayed import final_state, with_delayed_updates
from pipelined.swarm.stages.swarm_stage import SwarmStage
from pipelined.swarm.stages.torch_stage import TorchStage
from transports import Nursery

SwarmSnapshot = list[tuple[SavedStage, Mapping[str, Any]]]
"""The version of each stage, and its state with every summed gradient applied."""


class SwarmObserver:
    """A process that copies the state of a swarm.

    Args:
        local: this process; its name is unique among the observers.
        build: builds a stage; its state is loaded afterwards.
    """

    def __init__(self, local: LocalMember, build: Build, rules: Rules, executor: Executor):
        self._local = local
        self._build = build
        self._rules = rules
        self._executor = executor
        self._view = SwarmView(local.directory, local.clock)
        self._probe = Probe(MemberClient(local.endpoint, self._view), local.clock, rules.lease_s)

    async def snapshot(self) -> SwarmSnapshot:
        """The state of every stage at the committed step; waits while a stage has no peer.

        If a step is committed meanwhile, its totals are fetched and applied to the stages that were fetched before.

        Raises:
            CutOff: the directory does not reply.
        Cost: memory of all stages; their bytes once over the network.
        """
        async with Nursery() as tasks:
            follow_task = tasks.create_task(self._view.follow())
            await self._view.wait_for(lambda: self._view.head)
            stages = [with_delayed_updates(self._build(index), self._rules.delayed) for index in self._indices]
            version = await self._fetch_under_leases([self._fetch_of(index, stages[index]) for index in self._indices])
            follow_task.cancel()
        saved_stages = [SavedStage(version.step, index, len(stages), version.lineage) for index in self._indices]
        return [(saved_stage, final_state(stage)) for saved_stage, stage in zip(saved_stages, stages, strict=True)]

    @property
    def _indices(self) -> range:
        return range(self._rules.stages)

    def _fetch_of(self, index: int, stage: SwarmStage) -> StateFetch:
        name, view, probe = self._local.name, self._view, self._probe
        return StateFetch(stage, index, None, name=name, view=view, probe=probe, queue=self._executor)

    async def _fetch_under_leases(self, fetches: Sequence[StateFetch]) -> Version:
        """Fetch all stages at one version, which is returned. After a lost lease, continue under a new one."""
        key = OBSERVERS + self._local.name
        seconds = self._rules.lease_s
        clock = self._local.clock
        while True:
            try:
                async with registered(self._local.directory, key, seconds, clock) as registration:
                    record = ObserverRecord(self._local.name, self._local.endpoint.address, registration.incarnation)
                    await registration.put(record)
                    while any(fetch.version != self._view.version for fetch in fetches):
                        for fetch in fetches:
                            await fetch.run()
                    return self._view.version
            except LeaseLost as error:
                warn("membership lost", observer=self._local.name, why=str(error) or type(error).__name__)
                await clock.sleep(RETRY_S)


async def snapshot(local: LocalMember, session: SwarmSession) -> SwarmSnapshot:
    """The state of all stages, on the CPU; see `SwarmObserver.snapshot`."""
    executor = TorchExecutor("cpu", local.clock)
    try:
        return await SwarmObserver(local, partial(TorchStage, session.training), session.rules, executor).snapshot()
    finally:
        executor.close()
