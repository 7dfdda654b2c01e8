"""The stage that a newcomer is to hold, from the present peers and what the newcomer has on disk.

The leader decides, because it follows all peers: a newcomer announces itself in the directory, and sends a request to
the leader. Newcomers that send it at once are spread over the stages, because the leader counts each of them from its
reply on. While no trainer leads, newcomers wait.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from pipelined.aio.events import warn
from pipelined.aio.nursery import Nursery
from pipelined.directory.registration import Registration
from pipelined.membership.client import MemberClient, Node
from pipelined.membership.reasons import Reason
from pipelined.membership.view import RETRY_S, NoLongerValid
from pipelined.swarm.config import stop_if_refused
from pipelined.swarm.protocol.work import AssignedStage, GetStage
from pipelined.swarm.records.members import CAME
from pipelined.swarm.records.view import SwarmView
from transports.rpc import Party, Rejected, Unreachable


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


class StageAssigner:
    """The leader's replies to newcomers.

    Args:
        stages: of the model.
    """

    def __init__(self, view: SwarmView, stages: int):
        self._view, self._stages = view, stages

    async def assign(self, request: GetStage, sender: Party) -> AssignedStage:
        """Reply to one newcomer with its stage.

        Raises:
            Rejected: "stranger": the directory has no newcomer of this name and address.
        """
        name, address, newcomers = request.name, sender.address, self._view.newcomers
        try:
            async with asyncio.timeout(RETRY_S):  # the announcement may not have arrived here yet
                await self._view.wait_for(lambda: name in newcomers and newcomers[name].address == address)
        except TimeoutError:
            raise Rejected(Reason.STRANGER, address=address) from None
        return AssignedStage(self.stage_for(name))

    def stage_for(self, name: str) -> int:
        """The first lost stage that the newcomer has saved at the head's version; else the stage with the fewest peers.

        Args:
            name: of the peer; its former stage does not count.
        Cost: O(stages), in a swarm of any size.
        """
        census, stages = self._view.census, range(self._stages)
        lost = [stage for stage in stages if not census.holding(stage)]
        saved = self._saved(name) if lost else set[int]()
        stage = next((stage for stage in lost if stage in saved), fewest(census.staying(self._stages, without=name)))
        census.assign(name, stage)
        return stage

    def _saved(self, name: str) -> set[int]:
        """The stages that a peer has saved at the head's version; empty if it has saved all of them."""
        record, version = self._view.saved.get(name), self._view.head.version if self._view.head else None
        saved_stages = record.all() if record else []
        found = {saved.stage for saved in saved_stages if saved.version == version and saved.stages == self._stages}
        return found if len(found) < self._stages else set()


def fewest(peers: Sequence[int]) -> int:
    """The stage with the fewest peers, from the number of peers that are, or will be, at each stage."""
    return peers.index(min(peers))
