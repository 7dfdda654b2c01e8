"""The requests of a trainer: to the leader for a microbatch, to peers for passes. A newcomer requests a stage."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Generic, NamedTuple

from pipelined.membership.messaging.fields import ListOf, number, whole
from pipelined.membership.messaging.messages import Done, MemberReply, MemberRequest, MemberRole, Reply
from pipelined.membership.messaging.reasons import Reason
from pipelined.state.stages.messages import Lineage, Step
from pipelined.swarm.protocol.field_types import CodedArrays, Incarnation, Index, Name, Revision, StageNumber


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
    counted: Annotated[Mapping[StageNumber, Name], ListOf()]
    score: Score | None


@dataclass(frozen=True, slots=True)
class WorkItem(MemberReply):
    """A microbatch that the leader assigns to a slot of a trainer.

    Args:
        step, index: of the microbatch.
        stages: the stages that must count it; empty: it is validation data.
        parameter_version: names the parameters that it is for, see `Head`.
        revision: of the head at which it was assigned; the work is useless after the head has moved on.
    """

    step: Step
    index: Index
    stages: Annotated[tuple[StageNumber, ...], ListOf()]
    parameter_version: Lineage
    revision: Revision


@dataclass(frozen=True, slots=True)
class GetWork(MemberRequest[WorkItem]):
    """Record what this slot has done, and reply with its next microbatch as soon as one is free.

    Args:
        name, incarnation: of the trainer, as in the directory.
        slot: of the trainer.
        done: the slot's last microbatch; None: it has none to report.
    """

    topic = "work"
    sender = MemberRole.TRAINER
    receiver = MemberRole.LEADER
    rejections = (Reason.NOT_LEADING, Reason.STRANGER, Reason.OTHER_MODEL)

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

    topic = "stage"
    sender = MemberRole.NEWCOMER
    receiver = MemberRole.LEADER
    rejections = (Reason.NOT_LEADING, Reason.STRANGER)

    name: Name


@dataclass(frozen=True, slots=True)
class PassRequest(MemberRequest[Reply], Generic[Reply]):
    """A pass over one microbatch at one stage.

    Args:
        step, index: of the microbatch.
        parameter_version: names the parameters that the pass needs, see `Head`.
        inputs: of the stage.
    """

    sender, receiver = MemberRole.TRAINER, MemberRole.PEER
    rejections = (Reason.STEP_PASSED, Reason.BEHIND, Reason.LEFT, Reason.OTHER_LINEAGE, Reason.NOT_FINITE)

    step: Step
    index: Index
    parameter_version: Lineage
    inputs: CodedArrays


@dataclass(frozen=True, slots=True)
class Outputs(MemberReply):
    """The outputs of a pass. At the last stage, an evaluation replies with the loss of each sample, not coded."""

    arrays: CodedArrays

    def losses(self, samples: int) -> list[float]:
        """The losses of this many samples of validation data.

        Raises:
            ValueError: they are missing, or not finite.
        """
        blocks, _ = self.arrays
        losses = [loss for block in blocks if block.dtype == "float64" for loss in block.numpy().ravel().tolist()]
        finite = sum(map(math.isfinite, losses))
        if not len(losses) == finite == samples:
            raise ValueError(f"the reply to an evaluation has no finite losses (finite: {finite} of {samples})")
        return losses


@dataclass(frozen=True, slots=True)
class Gradients(MemberReply):
    """The gradients of a stage's inputs.

    Args:
        counted: whether this peer's sum holds the microbatch now.
    """

    arrays: CodedArrays
    counted: bool


@dataclass(frozen=True, slots=True)
class Forward(PassRequest[Outputs]):
    """Compute the outputs of one microbatch; nothing is kept."""

    topic = "forward"


@dataclass(frozen=True, slots=True)
class Backward(PassRequest[Gradients]):
    """Compute forward again, then the gradients of the inputs.

    Args:
        given: gradients of the outputs; at the last stage the labels.
        count: add the gradients of the parameters to the sum, unless it holds this microbatch already.
    """

    topic = "backward"

    given: CodedArrays
    count: bool


@dataclass(frozen=True, slots=True)
class Evaluate(PassRequest[Outputs]):
    """Compute the outputs of one microbatch of validation data; nothing is kept or counted.

    Args:
        labels: at the last stage alone.
    """

    topic = "evaluate"

    labels: CodedArrays | None = None


@dataclass(frozen=True, slots=True)
class Announce(MemberRequest[Done]):
    """Write your record to the directory again: this trainer banned you, and uses you again after that."""

    topic = "announce"
    sender = MemberRole.TRAINER
    receiver = MemberRole.PEER
    rejections = (Reason.STRANGER,)
