"""The status of a swarm as seen from outside: the directory's records, and the report of each process.

The requests change nothing, and a process that does not reply is shown as silent.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

from pipelined.aio import events
from pipelined.aio.clock import RealClock
from pipelined.directory import CutOff, Directory, View
from pipelined.errors import UsageError
from pipelined.membership.messages import Status, send
from pipelined.membership.records import Peer, Phase, TrainerRecord
from pipelined.membership.view import WORKING
from pipelined.state.saver import choose_saver
from pipelined.state.versions import saved_steps
from pipelined.swarm.member_reports import checked
from pipelined.swarm.records import SUBJECT, Commit
from pipelined.swarm.view import SwarmView
from transports.rpc import Endpoint, Rejected, Unreachable

REPLY_TIMEOUT_S = 1.0
"""Seconds that a process has for its reply."""
DIRECTORY_TIMEOUT_S = 2.0
"""Seconds that the directory has for its reply to a repeated read."""
MOST_EVENTS = 20
"""The most events, of all members together, in a status."""
MOST_REQUESTS = 64
"""The most members with a request in flight."""
Report = dict[str, Any]


@dataclass(frozen=True)
class Goal:
    """What a program records of its training for the status.

    Args:
        steps, tokens: to train; of a microbatch.
        held_out: microbatches of validation data; 0: nothing is evaluated.
    """

    steps: int
    tokens: int
    held_out: int


@dataclass(frozen=True)
class Selection:
    """The members that are queried and shown one by one; all others are counted.

    Args:
        members: the most peers, by stage and name, and the most trainers, the leader first.
        stage: the peers of this stage alone; None: of all.
    """

    members: int = 100
    stage: int | None = None

    def peers(self, peers: Sequence[Peer]) -> list[Peer]:
        """Those of these peers that are shown, by name."""
        here = [peer for peer in peers if self.stage in (None, peer.stage)]
        here.sort(key=lambda each: (each.stage, each.name))
        return sorted(here[: self.members], key=lambda each: each.name)

    def trainers(self, trainers: Sequence[TrainerRecord], leader: str | None) -> list[TrainerRecord]:
        """Those of these trainers that are shown, by name."""
        first = sorted(trainers, key=lambda each: (each.name != leader, each.name))
        return sorted(first[: self.members], key=lambda each: each.name)


@dataclass(frozen=True)
class SwarmStatus:
    """The status of a swarm; docs/command-line.md explains each field.

    Args:
        step, loss, norm: of the head; None: there is none.
        conductor: name of the leader.
        peers, trainers: the selected members: their records and reports.
        unsaved_stages: that no peer saves, though others are saved.
        unreadable: why a record of the directory cannot be read, by key.
        step_phase, attempt, last_failure: of the current step, as the leader reports them.
        donors, savers: by the peer that joins; by stage.
        summary: by stage, the number of peers in each phase.
        left_out: how many members are not selected.
    """

    step: int | None
    loss: float | None
    norm: float | None
    conductor: str | None
    stages: int
    peers: list[Report]
    trainers: list[Report]
    steps: int | None
    tokens_per_s: float | None
    waits_for: str
    eval_loss: float | None
    eval_step: int | None
    observers: list[str]
    unsaved_stages: list[int]
    unreadable: dict[str, str]
    events: list[Report]
    step_phase: str | None
    attempt: int | None
    last_failure: str | None
    donors: dict[str, str]
    savers: list[str | None]
    summary: list[dict[str, int]]
    left_out: dict[str, int]

    def plain(self) -> dict[str, Any]:
        """The fields by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


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
        Cost: one read of the directory, and one request to each selected member, `MOST_REQUESTS` at a time.
        """
        return await self._status(await self._directory.read())

    async def repeat(self, every_s: float) -> AsyncIterator[tuple[SwarmStatus, float]]:
        """Read repeatedly; yields the last status and its age in seconds, 0.0 unless the directory does not reply.

        Args:
            every_s: from the end of one read to the next.
        Raises:
            CutOff: the directory did not reply to the first request.
        """
        last, now = await self.read(), asyncio.get_running_loop().time
        at = now()
        while True:
            yield last, now() - at
            await asyncio.sleep(every_s)
            with suppress(CutOff, TimeoutError):
                async with asyncio.timeout(DIRECTORY_TIMEOUT_S):
                    view = await self._directory.read()
                last, at = await self._status(view), now()

    async def _status(self, entries: View) -> SwarmStatus:
        view = self._view
        view.load(entries, "")
        goal, unreadable = self._goal(entries)
        head, evaluated = view.head, view.evaluated
        leader = view.leader.name if view.leader else None
        everyone, all_trainers = [view.peers[name] for name in sorted(view.peers)], [*view.trainers.values()]
        selected = self._selection.peers(everyone), self._selection.trainers(all_trainers, leader)
        reports = await self._query([*selected[0], *selected[1]])
        peers, trainers = reports[: len(selected[0])], reports[len(selected[0]) :]
        _add_shares(peers, trainers, everyone)
        leading = next((each for each in trainers if each["name"] == leader), {})
        return SwarmStatus(
            step=head.step if head else None,
            loss=head.loss if head else None,
            norm=head.norm if head else None,
            conductor=leader,
            stages=head.stages if head else 0,
            peers=peers,
            trainers=trainers,
            steps=goal.steps if goal else None,
            tokens_per_s=sum(each.get("rate", 0.0) for each in trainers) * goal.tokens if goal else None,
            waits_for=self._waits_for(goal, trainers),
            eval_loss=evaluated.loss if evaluated else None,
            eval_step=evaluated.step if evaluated else None,
            observers=sorted(view.observers),
            unsaved_stages=_unsaved_stages(view, everyone),
            unreadable={**view.unreadable, **unreadable},
            events=_events(reports),
            step_phase=leading.get("step_phase"),
            attempt=leading.get("attempt"),
            last_failure=leading.get("last_failure"),
            donors={each["name"]: each["donor"] for each in reports if each.get("donor")},
            savers=[_saver(view, stage) for stage in range(head.stages if head else 0)],
            summary=_summary(head, everyone),
            left_out={"peers": len(everyone) - len(peers), "trainers": len(all_trainers) - len(trainers)},
        )

    def _goal(self, entries: View) -> tuple[Goal | None, dict[str, str]]:
        """The goal, if it is recorded, and why its record cannot be read."""
        try:
            return (self._read_goal(entries.entries[SUBJECT].value) if SUBJECT in entries.entries else None), {}
        except (ValueError, UsageError) as error:
            return None, {SUBJECT: str(error)}

    def _waits_for(self, goal: Goal | None, trainers: Sequence[Report]) -> str:
        head, evaluated = self._view.head, self._view.evaluated
        measured = head is not None and evaluated is not None and evaluated.version == head.version
        last = head is not None and goal is not None and head.step >= goal.steps
        left = goal.held_out if goal and head and not measured else 0
        scored = [f"{left - each['unscored']} of " for each in trainers if each.get("unscored") is not None]
        evaluates = f"{''.join(scored[:1])}{left}" if last and left else ""
        return waits_for(self._view, evaluates=evaluates, over=last and not left)

    async def _query(self, members: Sequence[Peer | TrainerRecord]) -> list[Report]:
        """The members' records with their reports."""
        free = asyncio.Semaphore(MOST_REQUESTS)

        async def query(member: Peer | TrainerRecord) -> Report:
            async with free:
                return await self._report(member.address) | asdict(member)

        return await asyncio.gather(*map(query, members))

    async def _report(self, address: str) -> Report:
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                reply = await send(self._endpoint, address, Status(events=True))
            return checked(reply.facts) | {"silent": False}
        except (TimeoutError, Unreachable, Rejected):
            return {"silent": True}


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
    if head is None:
        saved = saved_steps(saved for each in view.saved.values() for saved in each.all())
        return "peers that have saved all stages at one step" + (f" (saved: {saved})" if saved else "")
    if empty := [str(stage) for stage in range(head.stages) if not view.serving(stage)]:
        return f"a peer of stage {', '.join(empty)}"
    return f"the evaluation of step {head.step} (microbatches: {evaluates})" if evaluates else ""


def _add_shares(peers: Sequence[Report], trainers: Sequence[Report], everyone: Sequence[Peer]) -> None:
    """Add to each peer its share of the replies that its stage sent to the trainers; NaN: there were none."""
    answers = sum((Counter(trainer.get("answers", {})) for trainer in trainers), Counter[str]())
    of_stage = Counter[int]()
    for each in everyone:
        of_stage[each.stage] += answers[each.name]
    for peer in peers:
        total = of_stage[peer["stage"]]
        peer["share"] = answers[peer["name"]] / total if total else math.nan


def _unsaved_stages(view: SwarmView, peers: Sequence[Peer]) -> list[int]:
    """The stages that no peer saves, in a swarm that saves or has saved."""
    saves = {peer.stage for peer in peers if peer.saves_every}
    if view.head is None or not (saves or any(each.all() for each in view.saved.values())):
        return []
    return [stage for stage in range(view.head.stages) if stage not in saves]


def _saver(view: SwarmView, stage: int) -> str | None:
    """The peer that saves this stage."""
    chosen = choose_saver([peer for peer in view.census.at(stage) if peer.phase in WORKING], 0)
    return chosen.name if chosen else None


def _summary(head: Commit | None, peers: Sequence[Peer]) -> list[dict[str, int]]:
    """By stage, how many peers are in each phase, as the directory says."""
    counts = Counter((peer.stage, str(peer.phase)) for peer in peers)
    stages = max([head.stages if head else 0, *(peer.stage + 1 for peer in peers)])
    return [{"stage": stage} | {str(phase): counts[stage, str(phase)] for phase in Phase} for stage in range(stages)]


def _events(members: Sequence[Report]) -> list[Report]:
    """The last events that members reported, oldest first; the members of one process report the same event once."""
    found = dict[tuple[float, str], Report]()
    for member in members:
        for event in filter(None, map(events.read, member.pop("events", ()))):
            found.setdefault((event.at, str(event)), {"by": member["name"], **event.told()})
    return [each for _, each in sorted(found.items(), key=lambda entry: entry[0])][-MOST_EVENTS:]
