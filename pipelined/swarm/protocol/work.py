"""What trainers and newcomers request of the leader: a microbatch to compute, a stage to hold."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from pipelined.membership.fields import Many, number, whole
from pipelined.membership.messages import MemberReply, MemberRequest, MemberRole
from pipelined.membership.reasons import Reason
from pipelined.state.messages import Lineage, Step
from pipelined.swarm.protocol.field_types import Incarnation, Index, Name, Revision, StageNumber
from pipelined.swarm.stages.stage import Microbatch


class Score(NamedTuple):
    """The loss of a microbatch of validation data, summed over this many samples."""

    loss: Annotated[float, number()]
    samples: Annotated[int, whole()]


@dataclass(frozen=True, slots=True)
class WorkReport:
    """A microbatch that a trainer's slot has taken through the stages.

    Args:
        step, index: of the microbatch.
        revision: of the head at which it was assigned.
        counted: by stage, the peer that counted it.
        score: of validation data, which no stage counts; else None.
    """

    step: Step
    revision: Revision
    index: Index
    counted: Annotated[Mapping[StageNumber, Name], Many()]
    score: Score | None


@dataclass(frozen=True, slots=True)
class WorkItem(MemberReply):
    """A microbatch that the leader assigns to a slot of a trainer.

    Args:
        step, index: of the microbatch.
        stages: the stages that must count it; empty: it is validation data.
        lineage: of the parameters that it is for.
        revision: of the head at which it was assigned; the work is useless after the head has moved on.
    """

    step: Step
    index: Index
    stages: Annotated[tuple[StageNumber, ...], Many()]
    lineage: Lineage
    revision: Revision

    @property
    def which(self) -> Microbatch:
        """The microbatch."""
        return Microbatch(self.step, self.index)


@dataclass(frozen=True, slots=True)
class GetWork(MemberRequest[WorkItem]):
    """Record what this slot has done, and reply with its next microbatch as soon as one is free.

    Args:
        name, incarnation: of the trainer, as in the directory.
        slot: of the trainer.
        done: the slot's last microbatch; None: it has none to report.
    """

    topic, sender, receiver = "work", MemberRole.TRAINER, MemberRole.LEADER
    rejections = (Reason.NOT_LEADING, Reason.OTHER_MODEL)

    name: Name
    incarnation: Incarnation
    slot: Annotated[int, whole()]
    done: WorkReport | None


@dataclass(frozen=True, slots=True)
class AssignedStage(MemberReply):
    """The stage that a newcomer is to hold."""

    stage: StageNumber


@dataclass(frozen=True, slots=True)
class GetStage(MemberRequest[AssignedStage]):
    """Reply with the stage that this newcomer is to hold.

    Args:
        name: of the newcomer, as in the directory.
    """

    topic, sender, receiver = "place", MemberRole.NEWCOMER, MemberRole.LEADER
    rejections = (Reason.NOT_LEADING,)

    name: Name
