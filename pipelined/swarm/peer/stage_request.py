"""A newcomer requests a stage of the leader: it announces itself in the directory, and waits while no trainer leads."""

from functools import partial

from pipelined.aio.events import warn
from pipelined.aio.nursery import Nursery
from pipelined.directory.registration import Registration
from pipelined.membership.client import MemberClient, Node
from pipelined.membership.view import RETRY_S, NoLongerValid
from pipelined.swarm.config import stop_if_refused
from pipelined.swarm.protocol.work import GetStage
from pipelined.swarm.records.members import CAME
from pipelined.swarm.records.view import SwarmView
from transports.rpc import Rejected, Unreachable


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
