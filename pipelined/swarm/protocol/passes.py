"""What a trainer requests of a peer: passes over microbatches, and that it announces itself again."""

from dataclasses import dataclass
from typing import Generic

from pipelined.membership.messages import Done, MemberReply, MemberRequest, MemberRole, Reply
from pipelined.membership.reasons import Reason
from pipelined.state.messages import Lineage, Step
from pipelined.swarm.protocol.field_types import CodedArrays, Index
from pipelined.swarm.stages.stage import Microbatch


@dataclass(frozen=True, slots=True)
class PassRequest(MemberRequest[Reply], Generic[Reply]):
    """A pass over one microbatch at one stage.

    Args:
        step, index: name the microbatch.
        lineage: of the parameters that the pass needs.
        inputs: of the stage.
    """

    sender, receiver = MemberRole.TRAINER, MemberRole.PEER
    rejections = (Reason.STEP_PASSED, Reason.BEHIND, Reason.LEFT, Reason.OTHER_LINEAGE, Reason.NOT_FINITE)

    step: Step
    index: Index
    lineage: Lineage
    inputs: CodedArrays

    @property
    def which(self) -> Microbatch:
        """The microbatch."""
        return Microbatch(self.step, self.index)


@dataclass(frozen=True, slots=True)
class Outputs(MemberReply):
    """The outputs of a pass. At the last stage, an evaluation replies with the loss of each sample, not coded."""

    arrays: CodedArrays


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

    topic, sender, receiver = "announce", MemberRole.TRAINER, MemberRole.PEER
