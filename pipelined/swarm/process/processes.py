"""The two kinds of processes of a swarm: what each of them starts, and how it ends."""

import asyncio

from pipelined.actors.device.executor import Executor
from pipelined.aio.tasks import beside
from pipelined.membership.connection import LocalMember
from pipelined.membership.messaging.messages import handle_requests
from pipelined.membership.registration import Registration, run_under_leases
from pipelined.swarm.leader.assignments import evaluation_due
from pipelined.swarm.leader.leader import Leader
from pipelined.swarm.leader.reassignment import Rebalance, Rollback, rebalance
from pipelined.swarm.peer.peer import StagePeer
from pipelined.swarm.peer.service import MAX_ROUNDS
from pipelined.swarm.peer.stage_join import Build
from pipelined.swarm.protocol.status import Status, StatusReply, traffic_of
from pipelined.swarm.protocol.work import GetStage, GetWork
from pipelined.swarm.records.committed_steps import CommittedSteps
from pipelined.swarm.records.members import TRAINERS, TrainerRecord
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import PeerConfig, Rules
from pipelined.swarm.settings import TrainerSettings
from pipelined.swarm.trainer.trainer import Data, SwarmTrainer
from transports import Nursery
from transports.rpc import Endpoint, Party


class PeerProcess:
    """A peer with all its parts.

    Args:
        local: this process; its name is unique among the peers.
        build: builds a stage as it is before the first step.
    """

    def __init__(
        self, local: LocalMember, build: Build, rules: Rules, device: Executor, config: PeerConfig | None = None
    ):
        self.view = SwarmView(local.directory, local.clock, stages=frozenset())
        config = config or PeerConfig()
        self.peer = StagePeer(local, self.view, build, rules, device=device, config=config)
        self.name, self.grace_s, self._endpoint = local.name, config.grace_s, local.endpoint
        self._device = device
        device.name = local.name

    @property
    def address(self) -> str:
        return self._endpoint.address

    async def run(self) -> None:
        """Serve until `peer.leave()` or cancelled.

        Raises: the first error of any of its parts.
        """
        handle_requests(self._endpoint, Status, self._status, MAX_ROUNDS)
        with self._device.doing("serving"):
            await beside(self.peer.run(), self.view.follow(), _raise_when_failed(self._endpoint))

    async def _status(self, request: Status, sender: Party) -> StatusReply:
        report, traffic = self.peer.report(), traffic_of(self._endpoint)
        return StatusReply(self.view.cut_off, traffic, peer=report, events=request.recent_events)


class TrainerProcess:
    """A trainer with all its parts; it leads the swarm while no other trainer leads.

    Args:
        local: this process; its name is unique among the trainers.
        data: finds a microbatch by its name.
        slots: microbatches in progress at once.
        resume: whether to lead on from what any run saved; else only from what this run saved, if a stage is lost.
        steps: number of steps after which the run is over; None: never.
    """

    def __init__(
        self,
        local: LocalMember,
        data: Data,
        rules: Rules,
        *,
        slots: int = TrainerSettings.slots,
        steps: int | None = None,
        balance: Rebalance | None = None,
        resume: bool = False,
    ):
        self.name, self.rules, self._local, self._steps = local.name, rules, local, steps
        self._endpoint = local.endpoint
        self.view = SwarmView(local.directory, local.clock)
        rollback = Rollback(self.view, rules, local.clock, resume)
        self.leader = Leader(local, self.view, rules, rebalance=balance or rebalance, rollback=rollback, steps=steps)
        self.trainer = SwarmTrainer(local, self.view, data, rules, slots)

    async def run(self) -> None:
        """Train until the last step is committed, or cancelled.

        Raises:
            OtherModel: the swarm trains another model. Else the first error of any of its parts.
        """
        handle_requests(self._endpoint, GetWork, self.leader.assign_work)
        handle_requests(self._endpoint, GetStage, self.leader.assign_stage)
        handle_requests(self._endpoint, Status, self._status)
        leasing = run_under_leases(self._local, TRAINERS, self.rules.lease_s, self._run_registered)
        await beside(self._wait_over(), self.view.follow(), leasing, _raise_when_failed(self._endpoint))

    @property
    def is_over(self) -> bool:
        """Whether the last step is committed, and evaluated if an evaluation is due."""
        head = self.view.head
        return head is not None and self._steps is not None and head.step >= self._steps and not self.is_to_evaluate()

    def committed_steps(self) -> CommittedSteps:
        """The steps of this training, as this process sees them."""
        return CommittedSteps(self.view, self.rules, self._local.clock, self._steps)

    def is_to_evaluate(self) -> bool:
        """Whether the parameters of the directory's head must still be measured on validation data."""
        head = self.view.head
        return head is not None and evaluation_due(head, self.view.evaluated, self.rules, self._steps)

    async def _status(self, request: Status, sender: Party) -> StatusReply:
        report, traffic = self.trainer.report(self.leader.report), traffic_of(self._endpoint)
        return StatusReply(self.view.cut_off, traffic, trainer=report, events=request.recent_events)

    async def _wait_over(self) -> None:
        await self.view.wait_for_model(self.rules.digest)
        await self.view.wait_for(lambda: self.is_over)

    async def _run_registered(self, registration: Registration) -> None:
        """Lead and train under one lease."""
        name, address, incarnation = self.name, self._endpoint.address, registration.incarnation
        await registration.put(TrainerRecord(name, address, incarnation, self.rules.digest))
        async with Nursery() as tasks:
            tasks.create_task(self.leader.run(registration))
            tasks.create_task(self.trainer.run(incarnation))


async def _raise_when_failed(endpoint: Endpoint) -> None:
    await asyncio.shield(endpoint.failed)
