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
        async for last, age_s in poll_status(self._directory, self._status_from, every_s):
            yield replace(last, age_s=age_s)

    async def _status_from(self, snapshot: Snapshot) -> SwarmStatus:
        """The status of a swarm of which the directory has this snapshot; requests the selected members' replies."""
        view = self._view
        view.load(snapshot)
        goal, unreadable = self._goal(snapshot)
        head, evaluated = view.head, view.evaluated
        leader = view.leader.name if view.leader else None
        everyone = [view.peers[name] for name in sorted(view.peers)]
        all_trainers = [*view.trainers.values()]
        peers, trainers = await self._request_replies(
            self._selection.peers(everyone), self._selection.trainers(all_trainers, leader), everyone
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
            eval_loss=evaluated.loss if evaluated else None,
            eval_step=evaluated.step if evaluated else None,
            observers=sorted(view.observers),
            unsaved_stages=_unsaved_stages(view, everyone),
            unreadable={**view.unreadable, **unreadable},
            events=_events(members),
            leading=next((trainer.leads for trainer in trainers if trainer.record.name == leader), None),
            donors=_donors(peers),
            savers=[_saver(view, stage) for stage in range(head.stages if head else 0)],
            summary=_summary(head, everyone),
            left_out=LeftOut(len(everyone) - len(peers), len(all_trainers) - len(trainers)),
        )

    def _goal(self, snapshot: Snapshot) -> tuple[Goal | None, dict[str, str]]:
        """The goal, if it is recorded, and why its record cannot be read."""
        try:
            return (self._read_goal(snapshot.entries[TASK].value) if TASK in snapshot.entries else None), {}
        except (ValueError, UsageError) as error:
            return None, {TASK: str(error)}

    def _waits_for(self, goal: Goal | None, trainers: Sequence[TrainerStatus]) -> str:
        head, evaluated = self._view.head, self._view.evaluated
        measured = head is not None and evaluated is not None and evaluated.version == head.version
        last = head is not None and goal is not None and head.step >= goal.steps
        left = goal.held_out if goal and head and not measured else 0
        leading = next((trainer.leads for trainer in trainers if trainer.leads), None)
        scored = f"{left - leading.unscored:,} of " if leading else ""
        evaluates = f"{scored}{left:,}" if last and left else ""
        return waits_for(self._view, evaluates=evaluates, over=last and not left)

    async def _request_replies(
        self, peers: Sequence[PeerRecord], trainers: Sequence[TrainerRecord], everyone: Sequence[PeerRecord]
    ) -> tuple[list[PeerStatus], list[TrainerStatus]]:
        """The selected members with their replies.

        Args:
            everyone: all peers, of which the replies are shared.
        """
        free = asyncio.Semaphore(MAX_REQUESTS)

        selected: list[PeerRecord | TrainerRecord] = [*peers, *trainers]
        replies = await asyncio.gather(*(self._request_status(member.address, free) for member in selected))
        of_trainers = [TrainerStatus(*each) for each in zip(trainers, replies[len(peers) :], strict=True)]
        shares = _shares(of_trainers, everyone)
        return [
            PeerStatus(peer, reply, shares.get(peer.name, math.nan))
            for peer, reply in zip(peers, replies[: len(peers)], strict=True)
        ], of_trainers

    async def _request_status(self, address: str, free: asyncio.Semaphore) -> StatusReply | None:
        try:
            async with free, asyncio.timeout(REPLY_TIMEOUT_S):
                return await send(self._endpoint, address, Status(events=True))
        except (TimeoutError, Unreachable, Rejected):
            return None


def waits_for(view: SwarmView, *, evaluates: str = "", over: bool = False) -> str:
    """What keeps a swarm from its next step; "": nothing.

    Args:
        evaluates: how many microbatches are evaluated before the next step is decided; "": none.
        over: the last step is committed and evaluated.
    """
    head = view.head
    if over:
        return ""
    if not view.trainers:
        return "a trainer"
    if view.leader is None:
        return "a leader"
    saved = saved_steps(view.saved_stages)
    if head is None:
        return "peers that have saved all stages at one step" + (f" (saved: {saved})" if saved else "")
    empty = [stage for stage in range(head.stages) if not view.serving(stage)]
    lost = [stage for stage in empty if not view.holding(stage)]
    is_kept = head.version.is_untrained or common_step(stages_of_run(head.version.run, view.saved_stages))
    if lost and not is_kept:
        fact = f"a peer that has the state of stage {', '.join(map(str, lost))}, or a saved step of all stages"
        return f"{fact} (saved: {saved or 'nothing'})"
    if empty:
        return f"a peer of stage {', '.join(map(str, empty))}"
    return f"the evaluation after {head.step} steps ({evaluates} microbatches)" if evaluates else ""


def _shares(trainers: Sequence[TrainerStatus], everyone: Sequence[PeerRecord]) -> dict[str, float]:
    """By name, each peer's share of the replies that its stage sent to the trainers, where there were any."""
    answers = sum((Counter(trainer.report.replies) for trainer in trainers if trainer.report), Counter[str]())
    of_stage = Counter[int]()
    for peer in everyone:
        of_stage[peer.stage] += answers[peer.name]
    return {peer.name: answers[peer.name] / of_stage[peer.stage] for peer in everyone if of_stage[peer.stage]}


def _donors(peers: Sequence[PeerStatus]) -> dict[str, str]:
    reports = {peer.record.name: peer.reply.peer for peer in peers if peer.reply}
    return {name: report.donor for name, report in reports.items() if report and report.donor}


def _unsaved_stages(view: SwarmView, peers: Sequence[PeerRecord]) -> list[int]:
    """The stages that no peer saves, in a swarm that saves or has saved."""
    saves = {peer.stage for peer in peers if peer.saves_every}
    if view.head is None or not (saves or any(saved.all() for saved in view.saved.values())):
        return []
    return [stage for stage in range(view.head.stages) if stage not in saves]


def _saver(view: SwarmView, stage: int) -> str | None:
    """The peer that saves this stage."""
    chosen = choose_saver([peer for peer in view.census.at(stage) if peer.phase in WORKING], 0)
    return chosen.name if chosen else None


def _summary(head: Head | None, peers: Sequence[PeerRecord]) -> list[StageSummary]:
    stages = max([head.stages if head else 0, *(peer.stage + 1 for peer in peers)])
    phases = [Counter[Phase]() for _ in range(stages)]
    for peer in peers:
        phases[peer.stage][Phase(peer.phase)] += 1
    return [StageSummary(stage, each) for stage, each in enumerate(phases)]


def _events(members: Sequence[PeerStatus | TrainerStatus]) -> list[MemberEvent]:
    """The last events that members reported, oldest first; the members of one process report the same event once."""
    found = dict[tuple[float, str], MemberEvent]()
    for member in members:
        for event in member.reply.events if member.reply else ():
            found.setdefault((event.at, str(event)), MemberEvent(member.record.name, event))
    return [each for _, each in sorted(found.items(), key=lambda entry: entry[0])][-MAX_EVENTS:]
