"""How a peer gets a stage and its state: a newcomer requests a stage of the leader, and fetches the state from a peer.

A peer that was no member for a while keeps its stage, and fetches what it lacks.
"""

from collections.abc import Callable
from functools import partial

from pipelined.aio.events import warn
from pipelined.aio.nursery import Nursery
from pipelined.directory.registration import Registration
from pipelined.membership.client import MemberClient, Node, Probe
from pipelined.membership.view import RETRY_S, NoLongerValid
from pipelined.state.fetch import StateFetch
from pipelined.state.saver import Saver
from pipelined.state.versions import Version
from pipelined.swarm.config import Rules, stop_if_refused
from pipelined.swarm.peer.device_watchdog import DeviceWatchdog
from pipelined.swarm.peer.lifecycle import Presence
from pipelined.swarm.peer.replica import Replica
from pipelined.swarm.peer.service import PeerService
from pipelined.swarm.peer.stage_state import StageState
from pipelined.swarm.protocol.work import GetStage
from pipelined.swarm.records.members import CAME, Phase
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.stages.codec import Coding
from pipelined.swarm.stages.delayed import with_delayed_updates
from pipelined.swarm.stages.stage import SwarmStage
from transports.rpc import Rejected, Unreachable

Build = Callable[[int], SwarmStage]
"""Build a stage as it is before the first step, the same on all peers."""


class StageRequest:
    """A newcomer's requests for a stage.

    Args:
        node: the peer's process.
        stages: of the model.
    """

    def __init__(self, node: Node, view: SwarmView, client: MemberClient, stages: int):
        self._name, self._address, self._clock = node.name, node.endpoint.address, node.clock
        self._view, self._client, self._stages = view, client, stages

    async def send(self, registration: Registration) -> int:
        """Announce this peer, and send requests to the leader until a leader replies with a stage.

        Raises:
            LeaseLost, CutOff: as `Directory.transact`. UsageError: the leader has another version of the protocol.
        Cost: a round trip with the directory and, at the same time, one with the leader.
        """
        announcement = {CAME + self._name: self._address.encode()}
        async with Nursery() as tasks:
            tasks.create_task(self._view.directory.transact({}, announcement, lease=registration.lease))
            stage = await self._request_stage()
        return stage

    async def _request_stage(self) -> int:
        reported = "", ""
        while True:
            leader = await self._view.wait_for(lambda: self._view.leader)
            try:
                leads = partial(self._view.is_leader, leader)
                stage = (await self._client.request_while(leads, leader.address, GetStage(self._name))).stage
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
            if (leader.name, why) != reported:  # warn once a reason: the request is sent five times a second
                reported = leader.name, why
                warn("no stage given", peer=self._name, leader=leader.name, why=why)
            await self._clock.sleep(RETRY_S)


class StageJoin:
    """How one peer gets the state that it serves.

    Args:
        node: the peer's process.
        build: builds a stage.
        service: serves the replica, once it has the state.
        saver: finds what was saved, where no peer has the state.

    Attributes:
        wanted: the stage to serve next; None: the leader assigns one.
    """

    def __init__(
        self,
        node: Node,
        view: SwarmView,
        build: Build,
        rules: Rules,
        *,
        service: PeerService,
        presence: Presence,
        saver: Saver,
        probe: Probe,
        device: DeviceWatchdog,
        coding: Coding,
        wanted: int | None,
    ):
        self._name, self._endpoint, self._view, self._build, self._rules = node.name, node.endpoint, view, build, rules
        self._service, self._presence, self._saver, self._probe = service, presence, saver, probe
        self._device, self._coding, self.wanted = device, coding, wanted
        self._request = StageRequest(node, view, probe.client, rules.stages)

    async def join(self, registration: Registration, phase: Phase) -> Replica:
        """The replica of a new stage.

        Raises:
            LeaseLost, CutOff: as `StageRequest.send`.
        """
        index = await self._request.send(registration) if self.wanted is None else self.wanted
        self._view.add(index)  # before the record is put: what is read from now on includes the stage's peers
        await registration.put(self._presence.record(registration, phase, index))
        await self._view.follow_stages({index})
        return await self._fetch(with_delayed_updates(self._build(index), self._rules.delayed), index, Version(0, ""))

    async def rejoin(self, registration: Registration, replica: Replica) -> Replica:
        """The replica of the same stage, with what it lacks; its record is in the directory."""
        await self._view.wait_for(lambda: self._view.revision >= registration.revision)
        await replica.follow(self._view.committed)  # it may have been committed while this peer was no member
        await replica.discard_counts()
        return await self._fetch(replica.stage, replica.index, replica.version)

    async def _fetch(self, stage: SwarmStage, index: int, version: Version) -> Replica:
        self._service.drop_replica()
        self._view.notify()  # the replica is gone: a peer that is to leave need not wait for the fetch
        fetch = self._service.joining = StateFetch(
            stage,
            index,
            version,
            requester=self._name,
            view=self._view,
            probe=self._probe,
            device=self._device,
            load_saved=self._saver.find,
        )
        version = await fetch.run()
        state = StageState(
            self._name,
            index,
            stage,
            version,
            parameter_version=self._view.committed.parameter_version,
            rules=self._rules,
            device=self._device,
        )
        replica = self._service.replica = Replica(state, self._endpoint, self._coding)
        self._service.open(self._rules.batch)
        return replica
