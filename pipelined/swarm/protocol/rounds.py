"""The commit of a step: the leader's requests to peers, and the requests among the peers of a stage."""

from dataclasses import dataclass, field
from typing import Annotated, Generic, NamedTuple

import numpy as np

from pipelined.membership.messaging.fields import MAX_NUMBER, ListOf, Malformed, OneArray, number, raw, whole
from pipelined.membership.messaging.messages import Done, MemberReply, MemberRequest, MemberRole, Reply
from pipelined.membership.messaging.reasons import Reason
from pipelined.state.stages.messages import Lineage, Step
from pipelined.state.stages.versions import Version
from pipelined.swarm.protocol.field_types import CodedArrays, Incarnation, Name, Seconds, Waits
from transports.rpc import Rejected

DIGEST_BYTES = 16
STEP_REASONS = (Reason.STEP_PASSED, Reason.BEHIND, Reason.LEFT)
NUMBER_REASONS = (Reason.NOT_FINITE, Reason.BEYOND_CODEC)
SUM_REASONS = (Reason.NOT_PREPARED, Reason.LOST, Reason.ABORTED, *NUMBER_REASONS)


class RoundName(NamedTuple):
    """The name of a round of sums. A later round has a greater name, under any leader.

    Args:
        term: the revision at which its leader began to lead.
        number: counts this leader's rounds.
    """

    term: Annotated[int, whole()]
    number: Annotated[int, whole()]

    def __str__(self) -> str:
        """The name as records have it."""
        return f"{self.term}.{self.number}"


@dataclass(frozen=True, slots=True)
class RoundRequest(MemberRequest[Reply], Generic[Reply]):
    """A request of the leader. Only the leader of the round's term may send it.

    Args:
        round: its name.
    """

    sender, receiver = MemberRole.LEADER, MemberRole.PEER

    round: RoundName


@dataclass(frozen=True, slots=True)
class Counts(MemberReply):
    """What a peer's sum holds. It counts nothing more until the leader requests it.

    Args:
        load: of the peer since the last step: up to 1 its share of busy time, else the pieces of work that wait.
        indices: of the microbatches in the sum.
        losses: of each of them; 0 before the last stage.
    """

    load: Annotated[float, number(0.0)]
    indices: Annotated[np.ndarray, OneArray(("int64",))]
    losses: Annotated[np.ndarray, OneArray(("float64",))]

    def by_index(self) -> dict[int, float]:
        """The losses by index.

        Raises:
            Malformed: there is not a loss up to `MAX_NUMBER` for each index.
        """
        if self.indices.shape != self.losses.shape or not (np.abs(self.losses) <= MAX_NUMBER).all():
            raise Malformed(f"not a loss up to {MAX_NUMBER:g} for each index")
        return dict(zip(self.indices.tolist(), self.losses.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Prepare(RoundRequest[Counts]):
    """Stop counting, and report what was counted.

    Args:
        step, lineage: the version of the parameters with which the step to commit was computed.
    """

    topic = "prepare"
    rejections = (*STEP_REASONS, Reason.OTHER_LINEAGE, Reason.OLD_ROUND, Reason.DEVICE_LATE)

    step: Step
    lineage: Lineage

    @property
    def version(self) -> Version:
        return Version(self.step, self.lineage)


@dataclass(frozen=True, slots=True)
class Resume(RoundRequest[Done]):
    """Count again: microbatches are missing, or a member was lost.

    Args:
        keep: whether to keep the sum; else count from zero.
    """

    topic = "resume"
    rejections = (Reason.OLD_ROUND,)

    keep: bool


class RoundMember(NamedTuple):
    """A member of a round. The members' order is the order of addition."""

    name: Name
    address: Name
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Summed(MemberReply):
    """The total of a stage, which this peer holds now.

    Args:
        square: of the total's norm.
        digest: of the total's bits.
        fits: whether it can be applied; if not, the step is computed again.
    """

    square: Annotated[float, number(0.0)]
    digest: Annotated[bytes, raw(DIGEST_BYTES)]
    fits: bool = True


@dataclass(frozen=True, slots=True)
class Reduce(RoundRequest[Summed]):
    """Sum with the other members of the stage, and keep the total until a step is committed.

    Args:
        members: of the round at this stage.
        keep: whether this peer's sum counts; else it takes part with zeros.
        spread_s: seconds over which to spread the parts, as nothing waits for them; 0: send them at once.
        coded: whether the parts are coded.
    """

    topic = "reduce"
    rejections = (Reason.OLD_ROUND, Reason.DEVICE_LATE, *SUM_REASONS, Reason.PART_NOT_FINITE)

    members: Annotated[tuple[RoundMember, ...], ListOf(min_items=1)]
    keep: bool
    spread_s: Seconds = 0.0
    coded: bool = True


@dataclass(frozen=True, slots=True)
class RoundReport(MemberReply):
    """What one member says of the others during a sum.

    Args:
        unreachable: members that it cannot reach.
        parts: by name, seconds since the member last sent a part, for members that have not sent the first missing one.
        totals: by name, seconds since the owner last replied, for owners that owe a reply.
    """

    unreachable: Annotated[tuple[Name, ...], ListOf()] = ()
    parts: Waits = field(default_factory=dict)
    totals: Waits = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReportRound(RoundRequest[RoundReport]):
    """Probe the other members of the stage, and report which are unreachable and for which the sum waits."""

    topic = "reach"


@dataclass(frozen=True, slots=True)
class PartTotal(MemberReply):
    """The total of the chunk: the same bytes for every member."""

    total: CodedArrays


@dataclass(frozen=True, slots=True)
class SendPart(MemberRequest[PartTotal]):
    """Add a member's part of a chunk that the receiver owns; the reply comes when all parts are added.

    Args:
        round: the name of the round; a part of a later round waits until it begins.
        position: of the sender among the members.
        start: of the chunk, in values of the flat sum.
        part: the values.
    """

    topic = "part"
    sender = MemberRole.PEER
    receiver = MemberRole.PEER
    rejections = (Reason.OLD_ROUND, Reason.LEFT, Reason.UNEXPECTED_PART, Reason.ABORTED, *NUMBER_REASONS)

    round: RoundName
    position: Annotated[int, whole()]
    start: Annotated[int, whole()]
    part: CodedArrays


@dataclass(frozen=True, slots=True)
class Inherit(MemberRequest[Done]):
    """Add the sum of a leaving peer to yours.

    Args:
        step, lineage: the version of the leaving peer.
        sums: its gradient sums, flat.
        indices: of the microbatches in them.
        losses: of each of them.
    """

    topic = "inherit"
    sender = MemberRole.PEER
    receiver = MemberRole.PEER
    rejections = (*STEP_REASONS, Reason.OTHER_LINEAGE, Reason.IN_ROUND, Reason.OVERLAP, Reason.NOT_FINITE)

    step: Step
    lineage: Lineage
    sums: Annotated[np.ndarray, OneArray(("float32", "float64"))]
    indices: Annotated[np.ndarray, OneArray(("int64",))]
    losses: Annotated[np.ndarray, OneArray(("float64",))]

    @property
    def version(self) -> Version:
        """The version of the leaving peer."""
        return Version(self.step, self.lineage)


def lost_between(reporter: str, member: str, why: str) -> Rejected:
    """The rejection for a round that failed between two of its members."""
    return Rejected(Reason.LOST, why=why, by=reporter, member=member)


def parties_of(error: BaseException) -> tuple[str, str] | None:
    """The two members between which a round failed, as a rejection names them; None: it names none."""
    facts = error.facts if isinstance(error, Rejected) else {}
    by, member = facts.get("by"), facts.get("member")
    return (by, member) if type(by) is str and type(member) is str else None
