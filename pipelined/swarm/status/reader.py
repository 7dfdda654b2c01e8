"""Reads the status of a swarm: the directory's records, and a reply of each selected process.

The requests change nothing, and a process that does not reply is shown as silent.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from pipelined.aio.clock import RealClock
from pipelined.errors import UsageError
from pipelined.membership.directory import Directory, Snapshot
from pipelined.membership.messaging.messages import send
from pipelined.membership.polls import poll_status
from pipelined.membership.task_record import TASK
from pipelined.state.stages.versions import common_step, saved_steps, stages_of_run
from pipelined.swarm.protocol.status import Status, StatusReply
from pipelined.swarm.records.members import WORKING, PeerRecord, Phase, TrainerRecord, choose_saver
from pipelined.swarm.records.steps import Head
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.status.swarm_status import (
    Goal,
    LeftOut,
    MemberEvent,
    PeerStatus,
    Selection,
    StageSummary,
    SwarmStatus,
    TrainerStatus,
)
from transports.rpc import Endpoint, Rejected, Unreachable

REPLY_TIMEOUT_S = 1.0
"""Seconds that a process has for its reply."""
MAX_EVENTS = 20
"""The most events, of all members together, in a status."""
MAX_REQUESTS = 64
"""The most members with a request in flight."""


class StatusReader:
    """Reads the status of a swarm.

    Args:
        read_goal: reads the program's record of its training. Raises ValueError or UsageError.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        directory: Directory,
        read_goal: Callable[[bytes], Goal],
        selection: Selection | None = None,
    ):
        self._endpoint, self._directory, self._read_goal = endpoint, directory, read_goal
        self._selection = selection or Selection()
        self._view = SwarmView(directory, RealClock())

    async def read(self) -> SwarmStatus:
        """The present status.

        Raises:
            CutOff: the directory does not reply.
        Cost: one read of the directory, and one request to each selected member, `MAX_REQUESTS` at a time.
        """
        return await self._status_from(await self._directory.read())

    async def repeat(self, every_s: float) -> AsyncIterator[SwarmStatus]:
        """Read repeatedly; yields the last status, with its age if the directory does not reply.

        Args:
            every_s: from the end of one read to the next.
        Raises:
            CutOff: the directory did not reply to the first request.
        """
        async for status, age_s in poll_status(self._directory, self._status_from, every_s):
            yield replace(status, age_s=age_s)

    async def _status_from(self, snapshot: Snapshot) -> SwarmStatus:
        """The status of a swarm of which the directory has this snapshot; requests the selected members' replies."""
        view = self._view
        view.load(snapshot)
        goal, unreadable = self._goal(snapshot)
        head, evaluation = view.head, view.evaluation
        leader = view.leader.name if view.leader else None
        all_peers = [view.peers[name] for name in sorted(view.peers)]
        all_trainers = [*view.trainers.values()]
        peers, trainers = await self._request_replies(
            self._selection.peers(all_peers), self._selection.trainers(all_trainers, leader), all_peers
        )
        members: list[PeerStatus | TrainerStatus] = [*peers, *trainers]
        reports = [trainer.report for trainer in trainers if trainer.report]
        return SwarmStatus(
            step=head.step if head else None,
            loss=head.loss if head else None,
            norm=head.norm if head else None,
            leader=leader,
            stages=head.stages if head else 0,
            peers=peers,
            trainers=trainers,
            steps=goal.steps if goal else None,
            tokens_per_s=sum(report.rate for report in reports) * goal.tokens if goal else None,
            waits_for=self._waits_for(goal, trainers),
            eval_loss=evaluation.loss if evaluation else None,
            eval_step=evaluation.step if evaluation else None,
            observers=sorted(view.observers),
            unsaved_stages=_unsaved_stages(view, all_peers),
            unreadable={**view.unreadable, **unreadable},
            events=_events(members),
            leading=next((trainer.leads for trainer in trainers if trainer.record.name == leader), None),
            donors=_donors(peers),
            savers=[_saver(view, stage) for stage in range(head.stages if head else 0)],
            summary=_summary(head, all_peers),
            left_out=LeftOut(len(all_peers) - len(peers), len(all_trainers) - len(trainers)),
        )

    def _goal(self, snapshot: Snapshot) -> tuple[Goal | None, dict[str, str]]:
        """The goal, if it is recorded, and why its record cannot be read."""
        try:
            return (self._read_goal(snapshot.entries[TASK].value) if TASK in snapshot.entries else None), {}
        except (ValueError, UsageError) as error:
            return None, {TASK: str(error)}

    def _waits_for(self, goal: Goal | None, trainers: Sequence[TrainerStatus]) -> str:
        head, evaluation = self._view.head, self._view.evaluation
        is_measured = head is not None and evaluation is not None and evaluation.version == head.version
        is_last = head is not None and goal is not None and head.step >= goal.steps
        unscored = goal.held_out if goal and head and not is_measured else 0
        leader_report = next((trainer.leads for trainer in trainers if trainer.leads), None)
        scored = f"{unscored - leader_report.unscored:,} of " if leader_report else ""
        evaluations = f"{scored}{unscored:,}" if is_last and unscored else ""
        return waits_for(self._view, evaluations=evaluations, is_over=is_last and not unscored)

    async def _request_replies(
        self, peers: Sequence[PeerRecord], trainers: Sequence[TrainerRecord], all_peers: Sequence[PeerRecord]
    ) -> tuple[list[PeerStatus], list[TrainerStatus]]:
        """The selected members with their replies.

        Args:
            all_peers: all peers, of which the replies are shared.
        """
        free_requests = asyncio.Semaphore(MAX_REQUESTS)

        selected: list[PeerRecord | TrainerRecord] = [*peers, *trainers]
        replies = await asyncio.gather(*(self._request_status(member.address, free_requests) for member in selected))
        trainer_statuses = [
            TrainerStatus(*record_and_reply) for record_and_reply in zip(trainers, replies[len(peers) :], strict=True)
        ]
        shares = _shares(trainer_statuses, all_peers)
        return [
            PeerStatus(peer, reply, shares.get(peer.name, math.nan))
            for peer, reply in zip(peers, replies[: len(peers)], strict=True)
        ], trainer_statuses

    async def _request_status(self, address: str, free_requests: asyncio.Semaphore) -> StatusReply | None:
        try:
            async with free_requests, asyncio.timeout(REPLY_TIMEOUT_S):
                return await send(self._endpoint, address, Status(events=True))
        except (TimeoutError, Unreachable, Rejected):
            return None


def waits_for(view: SwarmView, *, evaluations: str = "", is_over: bool = False) -> str:
    """What keeps a swarm from its next step; "": nothing.

    Args:
        evaluations: how many microbatches are evaluated before the next step is decided; "": none.
        is_over: the last step is committed and evaluated.
    """
    head = view.head
    if is_over:
        return ""
    if not view.trainers:
        return "a trainer"
    if view.leader is None:
        return "a leader"
    steps = saved_steps(view.saved_stages)
    if head is None:
        return "peers that have saved all stages at one step" + (f" (saved: {steps})" if steps else "")
    unserved = [stage for stage in range(head.stages) if not view.serving(stage)]
    lost_stages = [stage for stage in unserved if not view.peers_with(stage)]
    is_kept = head.version.is_untrained or common_step(stages_of_run(head.version.run, view.saved_stages))
    if lost_stages and not is_kept:
        fact = f"a peer that has the state of stage {', '.join(map(str, lost_stages))}, or a saved step of all stages"
        return f"{fact} (saved: {steps or 'nothing'})"
    if unserved:
        return f"a peer of stage {', '.join(map(str, unserved))}"
    return f"the evaluation after {head.step} steps ({evaluations} microbatches)" if evaluations else ""


def _shares(trainers: Sequence[TrainerStatus], all_peers: Sequence[PeerRecord]) -> dict[str, float]:
    """By name, each peer's share of the replies that its stage sent to the trainers, where there were any."""
    replies = sum((Counter(trainer.report.replies) for trainer in trainers if trainer.report), Counter[str]())
    stage_replies = Counter[int]()
    for peer in all_peers:
        stage_replies[peer.stage] += replies[peer.name]
    return {
        peer.name: replies[peer.name] / stage_replies[peer.stage] for peer in all_peers if stage_replies[peer.stage]
    }


def _donors(peers: Sequence[PeerStatus]) -> dict[str, str]:
    reports = {peer.record.name: peer.reply.peer for peer in peers if peer.reply}
    return {name: report.donor for name, report in reports.items() if report and report.donor}


def _unsaved_stages(view: SwarmView, peers: Sequence[PeerRecord]) -> list[int]:
    """The stages that no peer saves, in a swarm that saves or has saved."""
    saved_stages = {peer.stage for peer in peers if peer.saves_every}
    if view.head is None or not (saved_stages or any(saved.all() for saved in view.saved.values())):
        return []
    return [stage for stage in range(view.head.stages) if stage not in saved_stages]


def _saver(view: SwarmView, stage: int) -> str | None:
    """The peer that saves this stage."""
    saver = choose_saver([peer for peer in view.census.stage_peers(stage) if peer.phase in WORKING], 0)
    return saver.name if saver else None


def _summary(head: Head | None, peers: Sequence[PeerRecord]) -> list[StageSummary]:
    stages = max([head.stages if head else 0, *(peer.stage + 1 for peer in peers)])
    phases = [Counter[Phase]() for _ in range(stages)]
    for peer in peers:
        phases[peer.stage][Phase(peer.phase)] += 1
    return [StageSummary(stage, counts) for stage, counts in enumerate(phases)]


def _events(members: Sequence[PeerStatus | TrainerStatus]) -> list[MemberEvent]:
    """The last events that members reported, oldest first; the members of one process report the same event once."""
    events = dict[tuple[float, str], MemberEvent]()
    for member in members:
        for event in member.reply.events if member.reply else ():
            events.setdefault((event.at, str(event)), MemberEvent(member.record.name, event))
    return [event for _, event in sorted(events.items(), key=lambda entry: entry[0])][-MAX_EVENTS:]
