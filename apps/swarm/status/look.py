"""A swarm as seen from outside: the directory's records, and the report of each process.

The requests change nothing, and a process that does not reply is shown as silent.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from apps.swarm.config import SUBJECT, Told
from apps.swarm.status.reports import checked
from apps.swarm.waiting import MOMENT_S, waits_for
from pipelined.aio import events
from pipelined.directory import CutOff, Directory, Entry, View
from pipelined.errors import UsageError
from pipelined.membership.messages import Status, send
from pipelined.membership.records import (
    LEADER,
    OBSERVERS,
    PEERS,
    TRAINERS,
    LeaderRecord,
    Observer,
    Peer,
    Phase,
    Trainer,
)
from pipelined.membership.view import WORKING
from pipelined.state.saver import choose_saver
from pipelined.state.versions import SAVED, SavedStage, SavedStages, saved_steps
from pipelined.swarm.records import EVALUATED, HEAD, Commit, Evaluation
from transports.rpc import Endpoint, Rejected, Unreachable

SILENT_S = 1.0
"""Seconds that a process has for its reply."""
MOST_EVENTS = 20
"""The most events, of all members together, in a look."""
MOST_ASKED = 64
"""The most members with a request in flight."""
Look = dict[str, Any]
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Shown:
    """The members that are queried and shown one by one; all others are counted.

    Args:
        members: the most peers, by stage and name, and the most trainers, the leader first.
        stage: the peers of this stage alone; None: of all.
    """

    members: int = 100
    stage: int | None = None

    def peers(self, peers: Sequence[Peer]) -> list[Peer]:
        """Those of these peers that are shown, by name."""
        here = sorted(
            (peer for peer in peers if self.stage in (None, peer.stage)), key=lambda each: (each.stage, each.name)
        )
        return sorted(here[: self.members], key=lambda each: each.name)

    def trainers(self, trainers: Sequence[Trainer], leader: str | None) -> list[Trainer]:
        """Those of these trainers that are shown, by name."""
        first = sorted(trainers, key=lambda each: (each.name != leader, each.name))
        return sorted(first[: self.members], key=lambda each: each.name)


ALL = Shown()


async def looks(endpoint: Endpoint, directory: Directory, every_s: float, shown: Shown = ALL) -> AsyncIterator[Look]:
    """Look repeatedly. While the directory does not reply, yield the last look, with the seconds since as `past_s`.

    Args:
        every_s: from the end of one look to the next.
        shown: the members to query.
    Raises:
        CutOff: the directory did not reply to the first request.
    """
    last, now = await look(endpoint, directory, shown), asyncio.get_running_loop().time
    at = now()
    while True:
        yield last | {"past_s": now() - at}
        await asyncio.sleep(every_s)
        with suppress(CutOff, TimeoutError):
            async with asyncio.timeout(MOMENT_S):
                view = await directory.read()
            last, at = await _look(endpoint, view, shown), now()


async def look(endpoint: Endpoint, directory: Directory, shown: Shown = ALL) -> Look:
    """One look: `step`, `loss`, `norm`, `conductor`, `stages`, `peers`, `trainers`, `observers`, `steps`,
    `tokens_per_s`, `waits_for`; of the leader `step_phase`, `attempt` and `last_failure`; `donors`, by the peer that
    joins; `savers`, by stage; `events`, the last of all members, each with the member that reported it (`by`);
    `eval_loss` of validation data, as it was last, after `eval_step` steps; `unsaved_stages`, that no peer saves
    though others are saved; `unreadable`, the directory's records that cannot be read, by key, with the reason;
    `summary`, how many peers of each stage are in each phase; `left_out`, how many `peers` and `trainers` are not
    shown.

    Raises:
        CutOff: the directory does not reply.
    Cost: one read of the directory, and one request to each member that is shown, `MOST_ASKED` at a time.
    """
    return await _look(endpoint, await directory.read(), shown)


async def _look(endpoint: Endpoint, view: View, shown: Shown) -> Look:
    records = _Records(view.entries)
    head, evaluated = records.one(Commit, HEAD), records.one(Evaluation, EVALUATED)
    leader = records.one(LeaderRecord, LEADER)
    every_peer, every_trainer = records.all(Peer, PEERS), records.all(Trainer, TRAINERS)
    peers, trainers = shown.peers(every_peer), shown.trainers(every_trainer, leader and leader.name)
    seen = await _query_all(endpoint, [*peers, *trainers])
    told = records.one(Told, SUBJECT)
    saved = [saved for each in records.all(SavedStages, SAVED) for saved in each.all()]
    more: Look = {"eval_loss": evaluated and evaluated.loss, "eval_step": evaluated and evaluated.step}
    more["observers"] = [observer.name for observer in records.all(Observer, OBSERVERS)]
    more["unsaved_stages"] = _unsaved_stages(head, every_peer, saved)
    left = told.held_out if told and head and not (evaluated and evaluated.version == head.version) else 0
    more["unreadable"] = records.unreadable
    more["events"] = _events(seen)
    more |= _progress(seen[len(peers) :], leader and leader.name)
    more["donors"] = {each["name"]: each["donor"] for each in seen if each.get("donor")}
    more["savers"] = _savers(head, every_peer)
    more["summary"] = _summary(head, every_peer)
    more["left_out"] = {"peers": len(every_peer) - len(peers), "trainers": len(every_trainer) - len(trainers)}
    position = _position(
        head,
        told,
        leader=leader and leader.name,
        saved=saved_steps(saved) if head is None else "",
        every_peer=every_peer,
        peers=seen[: len(peers)],
        trainers=seen[len(peers) :],
        left=left,
    )
    return position | more


class _Records:
    """The directory's entries, each read on its own: one that cannot be read is noted, and the others are shown."""

    def __init__(self, entries: Mapping[str, Entry]):
        self._entries, self.unreadable = entries, dict[str, str]()

    def one(self, kind: type[Kind], key: str) -> Kind | None:
        """The record of this key; None if it is missing or cannot be read."""
        try:
            return kind.unpack(self._entries[key].value) if key in self._entries else None
        except (ValueError, UsageError) as error:
            self.unreadable[key] = str(error)
            return None

    def all(self, kind: type[Kind], prefix: str) -> list[Kind]:
        """The readable records below a prefix, by key."""
        read = [self.one(kind, key) for key in sorted(self._entries) if key.startswith(prefix)]
        return [record for record in read if record is not None]


def _unsaved_stages(head: Commit | None, peers: Sequence[Peer], saved: Sequence[SavedStage]) -> list[int]:
    """The stages that no peer saves, in a swarm that saves or has saved."""
    saves = {peer.stage for peer in peers if peer.saves_every}
    return [stage for stage in range(head.stages) if stage not in saves] if head and (saves or saved) else []


def _savers(head: Commit | None, peers: Sequence[Peer]) -> list[str | None]:
    """By stage, the peer that saves it; None where no peer does."""
    working = dict[int, list[Peer]]()
    for peer in peers:
        if peer.phase in WORKING:
            working.setdefault(peer.stage, []).append(peer)
    chosen = [choose_saver(working.get(stage, []), 0) for stage in range(head.stages if head else 0)]
    return [peer and peer.name for peer in chosen]


def _summary(head: Commit | None, peers: Sequence[Peer]) -> list[Look]:
    """By stage, how many peers are in each phase, as the directory says."""
    there = Counter((peer.stage, str(peer.phase)) for peer in peers)
    stages = max([head.stages if head else 0, *(peer.stage + 1 for peer in peers)])
    return [{"stage": stage} | {str(phase): there[stage, str(phase)] for phase in Phase} for stage in range(stages)]


def _progress(trainers: Sequence[Look], leader: str | None) -> Look:
    """The leader's report of the current step."""
    report = next((each for each in trainers if each["name"] == leader), {})
    return {name: report.get(name) for name in ("step_phase", "attempt", "last_failure")}


def _events(members: Sequence[Look]) -> list[Look]:
    """The last events that members reported, oldest first; the members of one process report the same event once."""
    found = dict[tuple[float, str], Look]()
    for member in members:
        for event in filter(None, map(events.read, member.pop("events", ()))):
            found.setdefault((event.at, str(event)), {"by": member["name"], **event.told()})
    return [each for _, each in sorted(found.items(), key=lambda entry: entry[0])][-MOST_EVENTS:]


def _position(
    head: Commit | None,
    told: Told | None,
    *,
    leader: str | None,
    saved: str,
    every_peer: Sequence[Peer],
    peers: list[Look],
    trainers: list[Look],
    left: int,
) -> Look:
    """The step, the members and what the swarm waits for.

    Args:
        peers, trainers: the members that were requested to report.
        saved: the saved steps of each stage, while no step is committed.
        left: microbatches of validation data, if the parameters of the head are not evaluated yet.
    """
    answers = sum((Counter(trainer.get("answers", {})) for trainer in trainers), Counter())
    stages, of_stage = head.stages if head else 0, Counter[int]()
    for each in every_peer:
        of_stage[each.stage] += answers[each.name]
    for peer in peers:
        mine = of_stage[peer["stage"]]
        peer["share"] = answers[peer["name"]] / mine if mine else math.nan
    serving = Counter(peer.stage for peer in every_peer if peer.phase in WORKING)
    empty = [stage for stage in range(stages) if not serving[stage]]
    last = head is not None and told is not None and head.step >= told.subject.steps
    rate = sum(trainer.get("rate", 0.0) for trainer in trainers)
    scored = [f"{left - trainer['unscored']} of " for trainer in trainers if trainer.get("unscored") is not None]
    evaluates = f"{''.join(scored[:1])}{left}" if last and left else ""
    waiting = {"evaluates": evaluates, "over": last and not left, "saved": saved}
    return {
        "step": head.step if head else None,
        "loss": head.loss if head else None,
        "norm": head.norm if head else None,
        "conductor": leader,
        "stages": stages,
        "peers": peers,
        "trainers": trainers,
        "steps": told and told.subject.steps,
        "tokens_per_s": told and rate * told.subject.tokens,
        "waits_for": waits_for(head, leader, bool(trainers), empty, **waiting),
    }


async def _query_all(endpoint: Endpoint, members: Sequence[Peer | Trainer]) -> list[Look]:
    """The members' records with their reports."""
    free = asyncio.Semaphore(MOST_ASKED)

    async def query(member: Peer | Trainer) -> Look:
        async with free:
            return await _query(endpoint, member.address) | asdict(member)

    return await asyncio.gather(*map(query, members))


async def _query(endpoint: Endpoint, address: str) -> Look:
    try:
        async with asyncio.timeout(SILENT_S):
            return checked((await send(endpoint, address, Status(events=True))).facts) | {"silent": False}
    except (TimeoutError, Unreachable, Rejected):
        return {"silent": True}
