"""A trainer: takes microbatches through the stages, by the peers that reply soonest, and holds no parameters.

Each of its slots is a coroutine: get a microbatch, find its data from its name, run forward through all stages but the
last and backward through all of them, and report which peers counted it. It keeps every stage's inputs, so any running
peer can compute a backward. The trainer passes tensors between two stages unchanged, coded or not. Validation data goes
forward only, and the last stage returns its losses.

Source: SWARM, section 3.2 and Appendix C.
"""

import math
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from pipelined.errors import UsageError
from pipelined.membership.connection import LocalMember
from pipelined.membership.messaging.client import MemberClient
from pipelined.membership.messaging.reasons import Reason
from pipelined.membership.view import RETRY_S, NoLongerValid
from pipelined.swarm.protocol.status import LeaderReport, TrainerReport, largest
from pipelined.swarm.protocol.work import Backward, Evaluate, Forward, GetWork, Score, WorkItem, WorkReport
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules, stop_if_refused
from pipelined.swarm.stages.swarm_stage import Coded, Microbatch
from pipelined.swarm.trainer.peer_pool import MicrobatchNotFinite, PeerPool, StepPassed
from transports import Nursery
from transports.rpc import Rejected, Unreachable

MAX_NON_FINITE = 16
"""Non-finite microbatches in a row after which the trainer ends: fewer may be due to one broken peer."""
RECENT = 64
"""Microbatches over which the present speed is measured."""
Samples = tuple[Sequence[Any], Sequence[Any]]
"""The inputs of the first stage and the labels of the last."""
Data = Callable[[Microbatch], Samples | Awaitable[Samples]]
"""Samples from the name of their microbatch alone; awaited where reading takes long. The indices of validation data
follow those of the batch; its labels may have fewer samples than its inputs: the other inputs are padding."""


class SwarmTrainer:
    """The slots of one trainer.

    Args:
        local: the trainer's process.
        slots: microbatches in progress at once.

    Attributes:
        pool: the peers that it uses.
        done: microbatches that it has taken through the stages.
    """

    def __init__(self, local: LocalMember, view: SwarmView, data: Data, rules: Rules, slots: int):
        self.name = local.name
        self._stages = rules.stages
        self._data = data
        self._slots = slots
        self._view, self._clock = view, local.clock
        self._client = MemberClient(local.endpoint, view)
        self.pool = PeerPool(local, view, self._client, rules)
        self._end_times = deque[float](maxlen=RECENT)
        self.done, self._non_finite = 0, 0

    async def run(self, incarnation: int) -> None:
        """Train under this incarnation until cancelled."""
        async with Nursery() as tasks:
            tasks.create_task(self.pool.run())
            for slot in range(self._slots):
                tasks.create_task(self._run_slot(incarnation, slot))

    def report(self, leader_report: LeaderReport | None) -> TrainerReport:
        """What this trainer does, for status; `leader_report`: what it does as the leader."""
        now = self._clock.now()
        elapsed_s = now - self._end_times[0] if self._end_times else 0.0
        rate = round((len(self._end_times) - 1) / elapsed_s, 3) if elapsed_s else 0.0
        banned = {address: round(seconds, 3) for address, seconds in largest(self.pool.banned()).items()}
        return TrainerReport(self.done, rate, largest(self.pool.replies), banned, leader_report)

    async def _run_slot(self, incarnation: int, slot: int) -> None:
        report: WorkReport | None = None
        while True:
            leader = await self._view.wait_for(lambda: self._view.leader)
            request = GetWork(self.name, incarnation, slot, report)
            try:
                still_leads = partial(self._view.is_leader, leader)
                item = await self._client.request_while(still_leads, leader.address, request)
                report = None  # received; until here it is sent again, and the leader counts it once
                report = await self._run_if_current(item)
            except NoLongerValid:
                continue
            except Unreachable:
                await self._clock.sleep(RETRY_S)
            except Rejected as rejection:
                stop_if_refused(rejection)
                if rejection.reason == Reason.MALFORMED:  # a retry would fail as well
                    report = None
                await self._clock.sleep(RETRY_S)

    async def _run_if_current(self, item: WorkItem) -> WorkReport | None:
        """Take one microbatch through the stages. None: its step has passed, or the swarm rolled back."""
        try:
            async with self._view.while_holds(lambda: self._is_of_use(item)):
                report = await (self._train_microbatch(item) if item.stages else self._evaluate_microbatch(item))
        except (NoLongerValid, StepPassed):
            return None
        except MicrobatchNotFinite as error:
            self._non_finite += 1
            if self._non_finite == MAX_NON_FINITE:
                fact = f"{MAX_NON_FINITE} consecutive microbatches were not finite ({error})"
                raise UsageError(f"{fact}; training has diverged: lower the learning rate") from error
            return None
        self.done, self._non_finite = self.done + 1, 0
        self._end_times.append(self._clock.now())
        return report

    def _is_of_use(self, item: WorkItem) -> bool:
        """Whether the head has not moved since, or has moved to one with the parameters that the item is for."""
        head = self._view.head
        is_current = head is not None and (head.step, head.parameter_version) == (item.step, item.parameter_version)
        return is_current or self._view.head_revision <= item.revision

    async def _find_samples(self, item: WorkItem) -> Samples:
        samples = self._data(Microbatch(item.step, item.index))
        return await samples if isinstance(samples, Awaitable) else samples

    async def _evaluate_microbatch(self, item: WorkItem) -> WorkReport:
        """Forward only. Returns the sum of the losses, and the number of samples."""
        inputs, labels = await self._find_samples(item)
        flow: Coded = (tuple(inputs), None)
        for stage in range(self._stages):
            stage_labels = (tuple(labels), None) if stage == self._stages - 1 else None
            request = Evaluate(item.step, item.index, item.parameter_version, flow, stage_labels)
            _, reply = await self.pool.request(stage, request)
            flow = reply.arrays
        try:
            losses = reply.losses(len(labels[0]))
        except ValueError as error:
            raise MicrobatchNotFinite(str(error)) from error
        score = Score(math.fsum(losses), len(losses))
        return WorkReport(item.step, item.revision, item.index, {}, score)

    async def _train_microbatch(self, item: WorkItem) -> WorkReport:
        """Forward, then backward. Returns by stage the peer that counted it."""
        inputs, labels = await self._find_samples(item)
        name = item.step, item.index, item.parameter_version
        stage_inputs: list[Coded] = [(tuple(inputs), None)]
        for stage in range(self._stages - 1):
            _, outputs = await self.pool.request(stage, Forward(*name, stage_inputs[stage]))
            stage_inputs.append(outputs.arrays)
        output_gradients: Coded = (tuple(labels), None)
        counting_peers = dict[int, str]()
        for stage in reversed(range(self._stages)):
            peer, reply = await self.pool.request(
                stage, Backward(*name, stage_inputs.pop(), output_gradients, stage in item.stages)
            )
            output_gradients = reply.arrays
            if reply.counted:
                counting_peers[stage] = peer.name
        return WorkReport(item.step, item.revision, item.index, counting_peers, None)
