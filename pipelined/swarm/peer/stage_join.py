"""The way of a newcomer to a stage: it requests a stage of the leader, and fetches the state from a peer.

A peer that was no member for a while keeps its stage, and fetches what it lacks.
"""

from collections.abc import Callable
from functools import partial

from pipelined.membership.connection import LocalMember
from pipelined.membership.messaging.client import MemberClient
from pipelined.membership.registration import Registration
from pipelined.membership.view import RETRY_S, NoLongerValid
from pipelined.process.reporting.events import warn
from pipelined.state.stages.fetch import StateFetch
from pipelined.state.stages.versions import Version
from pipelined.swarm.peer.components import PeerComponents
from pipelined.swarm.peer.replica import Replica
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol.work import GetStage
from pipelined.swarm.records.members import NEWCOMERS, Phase
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import stop_if_refused
from pipelined.swarm.stages.delayed import with_delayed_updates
from pipelined.swarm.stages.swarm_stage import SwarmStage
from transports import Nursery
from transports.rpc import Rejected, Unreachable

Build = Callable[[int], SwarmStage]
"""Build a stage as it is before the first step, the same on all peers; blocks."""


class StageRequester:
    """A newcomer's requests for a stage.

    Args:
        local: the peer's process.
        stages: of the model.
    """

    def __init__(self, local: LocalMember, view: SwarmView, client: MemberClient, stages: int):
        self._name, self._address, self._clock = local.name, local.endpoint.address, local.clock
        self._view, self._client, self._stages = view, client, stages

    async def send(self, registration: Registration) -> int:
        """Announce this peer, and send requests to the leader until a leader replies with a stage.

        Raises:
            LeaseLost, CutOff: as `Directory.transact`. UsageError: the leader has another version of the protocol.
        Cost: a round trip with the directory and, at the same time, one with the leader.
        """
        announcement = {NEWCOMERS + self._name: self._address.encode()}
        async with Nursery() as tasks:
            tasks.create_task(self._view.directory.transact({}, announcement, lease=registration.lease))
            stage = await self._request_stage()
        return stage

    async def _request_stage(self) -> int:
        last_warning = "", ""
        while True:
            leader = await self._view.wait_for(lambda: self._view.leader)
            try:
                still_leads = partial(self._view.is_leader, leader)
                stage = (await self._client.request_while(still_leads, leader.address, GetStage(self._name))).stage
                if stage < self._stages:
                    return stage
                why = f"the leader assigned stage {stage}, but the model has {self._stages} stages"
            except NoLongerValid:
                continue
            except Rejected as rejection:
                stop_if_refused(rejection)
                why = str(rejection)
            except Unreachable as error:
                why = str(error)
            if (leader.name, why) != last_warning:  # warn once a reason: the request is sent five times a second
                last_warning = leader.name, why
                warn("no stage given", peer=self._name, leader=leader.name, why=why)
            await self._clock.sleep(RETRY_S)


class StageJoin:
    """How one peer gets the state that it serves.

    Args:
        build: builds a stage.
        configured_stage: the one to serve; None: the leader assigns one.

    Attributes:
        move_target: the stage to which the leader moved this peer, until it has that stage's state; None: none.
        fetch: how this peer last got its state; None: it has not begun.
    """

    def __init__(self, components: PeerComponents, build: Build, configured_stage: int | None):
        local, view, client, stages = (
            components.local,
            components.view,
            components.probe.client,
            components.rules.stages,
        )
        self._components = components
        self._view = view
        self._build = build
        self._configured_stage = configured_stage
        self._request = StageRequester(local, view, client, stages)
        self.move_target: int | None = None
        self.fetch: StateFetch | None = None

    async def join(self, registration: Registration, phase: Phase) -> Replica:
        """The replica of a new stage.

        Raises:
            LeaseLost, CutOff: as `StageRequester.send`.
        """
        index = self._configured_stage if self.move_target is None else self.move_target
        if index is None:
            index = await self._request.send(registration)
        self._view.add(index)  # before the record is put: what is read from now on includes the stage's peers
        await registration.put(self._components.presence.record(registration, phase, index))
        await self._view.follow_stages({index})
        stage, _, _ = await self._components.watchdog.run("build", partial(self._build_stage, index))
        replica = await self._fetch(stage, index, Version(0, ""))
        self.move_target = None
        return replica

    async def prepare_rejoin(self, registration: Registration, replica: Replica) -> None:
        """Apply what was committed while this peer was no member; its record is in the directory."""
        await self._view.wait_for(lambda: self._view.revision >= registration.revision)
        await replica.follow(self._view.require_head())
        await replica.stop_counting()

    async def rejoin(self, replica: Replica) -> Replica:
        """The replica of the same stage, with what it lacks."""
        return await self._fetch(replica.stage, replica.index, replica.version)

    def _build_stage(self, index: int) -> SwarmStage:
        """Build a stage: work of the device, so that the lease is renewed meanwhile."""
        return with_delayed_updates(self._build(index), self._components.rules.delayed)

    async def _fetch(self, stage: SwarmStage, index: int, version: Version) -> Replica:
        components = self._components
        self.fetch = StateFetch(
            stage,
            index,
            version,
            name=components.local.name,
            view=self._view,
            probe=components.probe,
            queue=components.watchdog,
            load_saved=components.saver.find,
        )
        version = await self.fetch.run()
        state = StageState(
            components.local.name,
            index,
            stage,
            version,
            parameter_version=self._view.require_head().parameter_version,
            rules=components.rules,
            executor=components.watchdog,
        )
        return Replica(state, components.local.endpoint, components.coding)
