"""The status of a swarm as seen from outside: what the directory records, and what each process reports of itself."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pipelined.process.reporting.events import Event
from pipelined.swarm.protocol.status import LeaderReport, StatusReply, TrainerReport
from pipelined.swarm.records.members import PeerRecord, Phase, TrainerRecord


@dataclass(frozen=True)
class Goal:
    """What a program records of its training for the status.

    Args:
        steps, tokens: to train; of a microbatch.
        held_out: microbatches of validation data; 0: nothing is evaluated.
    Raises:
        ValueError: a number is negative, or no float has it exactly.
    """

    steps: int
    tokens: int
    held_out: int

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1 << 53:
                raise ValueError(f"{name} is not from 0 to 2**53")


@dataclass(frozen=True)
class Selection:
    """The members that are queried and shown one by one; all others are counted.

    Args:
        members: the most peers, by stage and name, and the most trainers, the leader first.
        stage: the peers of this stage alone; None: of all.
    """

    members: int = 100
    stage: int | None = None

    def peers(self, peers: Sequence[PeerRecord]) -> list[PeerRecord]:
        """Those of these peers that are shown, by name."""
        candidates = [peer for peer in peers if self.stage in (None, peer.stage)]
        candidates.sort(key=lambda peer: (peer.stage, peer.name))
        return sorted(candidates[: self.members], key=lambda peer: peer.name)

    def trainers(self, trainers: Sequence[TrainerRecord], leader: str | None) -> list[TrainerRecord]:
        """Those of these trainers that are shown, by name."""
        ordered = sorted(trainers, key=lambda trainer: (trainer.name != leader, trainer.name))
        return sorted(ordered[: self.members], key=lambda trainer: trainer.name)


@dataclass(frozen=True)
class PeerStatus:
    """A selected peer.

    Args:
        reply: None: it is silent.
        share: of the replies that its stage sent to the trainers; NaN: there were none.
    """

    record: PeerRecord
    reply: StatusReply | None
    share: float

    @property
    def phase(self) -> str:
        """The phase by the name that readers see, which is not the directory's."""
        return Phase(self.record.phase).name.lower()

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON shows them; the stage's numbers are missing where it holds none."""
        peer = self.reply.peer if self.reply else None
        report: dict[str, Any] = {}
        if peer is not None:
            report = asdict(peer.stage) if peer.stage else {"forwards": 0, "backwards": 0}
            report |= {"unsaved": peer.unsaved, "donor": peer.donor}
        return _plain_reply(self.reply) | report | asdict(self.record) | {"phase": self.phase, "share": self.share}


@dataclass(frozen=True)
class TrainerStatus:
    """A selected trainer.

    Args:
        reply: None: it is silent.
    """

    record: TrainerRecord
    reply: StatusReply | None

    @property
    def report(self) -> TrainerReport | None:
        """What it reports; None: it is silent."""
        return self.reply.trainer if self.reply else None

    @property
    def leads(self) -> LeaderReport | None:
        """What it reports as the leader; None: it does not lead."""
        return self.report.leads if self.report else None

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON shows them; the leader's are missing where it does not lead."""
        report: dict[str, Any] = {}
        if self.report is not None:
            report = asdict(self.report) | {"leads": self.leads is not None}
        if self.leads is not None:
            fields = asdict(self.leads)
            report |= {"step_phase": fields.pop("phase"), **fields}
        return _plain_reply(self.reply) | report | asdict(self.record)


def _plain_reply(reply: StatusReply | None) -> dict[str, Any]:
    if reply is None:
        return {"silent": True}
    traffic = asdict(reply.traffic)
    old_names = {"rejected": traffic["invalid_input"], "refused": traffic["rejected_requests"]}
    return traffic | old_names | {"cut_off": reply.cut_off, "silent": False}


@dataclass(frozen=True)
class StageSummary:
    """How many peers of a stage are in each phase, as the directory says, whether they are selected or not."""

    stage: int
    phases: Counter[Phase]

    def to_dict(self) -> dict[str, int]:
        names = {name: phase for phase in Phase for name in (phase.value, phase.name.lower())}
        return {"stage": self.stage} | {name: self.phases[phase] for name, phase in names.items()}


@dataclass(frozen=True)
class MemberEvent:
    """An event, and the name of the member that reported it."""

    by: str
    event: Event

    def to_dict(self) -> dict[str, Any]:
        return {"by": self.by, **self.event.to_dict()}


@dataclass(frozen=True)
class LeftOut:
    """How many members are not selected."""

    peers: int = 0
    trainers: int = 0


@dataclass(frozen=True)
class SwarmStatus:
    """The status of a swarm; docs/command-line.md explains each field of `to_dict`.

    Args:
        step, loss, norm: of the head; None: there is none.
        peers, trainers: the selected members.
        unsaved_stages: that no peer saves, though others are saved.
        unreadable: why a record of the directory cannot be read, by key.
        leader, leading: its name, and what it reports; None: there is no leader, or it is silent.
        donors: by the peer that joins, the peer that sends it the state of its stage.
        savers: by stage, the peer that saves it.
        age_s: seconds since the directory replied, if it does not reply now.
    """

    step: int | None
    loss: float | None
    norm: float | None
    leader: str | None
    stages: int
    peers: Sequence[PeerStatus]
    trainers: Sequence[TrainerStatus]
    steps: int | None
    tokens_per_s: float | None
    waits_for: str
    eval_loss: float | None
    eval_step: int | None
    observers: Sequence[str]
    unsaved_stages: Sequence[int]
    unreadable: dict[str, str]
    events: Sequence[MemberEvent]
    leading: LeaderReport | None
    donors: dict[str, str]
    savers: Sequence[str | None]
    summary: Sequence[StageSummary]
    left_out: LeftOut
    age_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, as JSON shows them; those of `leading` beside the others."""
        leading = self.leading
        lists = ("peers", "trainers", "events", "summary")
        return {
            **{name: value for name, value in vars(self).items() if name != "leading"},
            "conductor": self.leader,
            **{name: [entry.to_dict() for entry in getattr(self, name)] for name in lists},
            "left_out": asdict(self.left_out),
            "step_phase": leading.phase if leading else None,
            "attempt": leading.attempt if leading else None,
            "last_failure": leading.last_failure if leading else None,
            "past_s": self.age_s,
        }
