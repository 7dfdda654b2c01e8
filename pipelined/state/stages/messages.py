"""The requests of a process that fetches the state of a stage from a donor, and their replies."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from pipelined.membership.messaging.fields import Arrays, ListOf, OneArray, number, raw, text, whole
from pipelined.membership.messaging.messages import MemberReply, MemberRequest, MemberRole
from pipelined.membership.messaging.reasons import Reason
from pipelined.state.stages.chunks import DIGEST, MAX_PARTS
from pipelined.state.stages.versions import Version
from transports import Block

Step = Annotated[int, whole()]
Lineage = Annotated[str, text(128)]
Root = Annotated[bytes, raw(DIGEST)]


@dataclass(frozen=True, slots=True)
class StateManifest(MemberReply):
    """The manifest of a copy of a stage's state, which the donor keeps for some steps.

    Args:
        step, lineage: the version of the copy.
        root: digest of layout and chunks; names the copy.
        digests: of the chunks, one after another.
    """

    step: Step
    lineage: Lineage
    root: Root
    digests: Annotated[np.ndarray, OneArray(("uint8",))]

    @property
    def version(self) -> Version:
        """The version of the copy."""
        return Version(self.step, self.lineage)


@dataclass(frozen=True, slots=True)
class FetchManifest(MemberRequest[StateManifest]):
    """Copy the state of the stage, if no copy is kept, and reply with its manifest."""

    topic = "manifest"
    sender = MemberRole.READER
    receiver = MemberRole.PEER
    rejections = (Reason.DEVICE_LATE,)


@dataclass(frozen=True, slots=True)
class StateChunk(MemberReply):
    """One chunk of a state.

    Args:
        parts: its bytes, as parts of the tensors in it, or in one block.
    """

    parts: Annotated[tuple[Block, ...], Arrays()]


@dataclass(frozen=True, slots=True)
class FetchChunk(MemberRequest[StateChunk]):
    """Reply with one chunk of the copy.

    Args:
        root: of the copy.
        index: of the chunk.
    """

    topic = "chunk"
    sender = MemberRole.READER
    receiver = MemberRole.PEER
    rejections = (Reason.NOT_KEPT,)

    root: Root
    index: Annotated[int, whole()]


@dataclass(frozen=True, slots=True)
class MissedTotals(MemberReply):
    """The totals of steps in a row.

    Args:
        scales: the factor of each step's total in the update.
        lineages: the lineage after each step.
        totals: the sum of the stage's gradients in each step; the requested part of one too large for a reply.
    """

    scales: Annotated[tuple[Annotated[float, number()], ...], ListOf(MAX_PARTS, 1)]
    lineages: Annotated[tuple[Lineage, ...], ListOf(MAX_PARTS, 1)]
    totals: Annotated[tuple[Block, ...], Arrays()]


@dataclass(frozen=True, slots=True)
class FetchTotals(MemberRequest[MissedTotals]):
    """Reply with the totals of the steps from a version on, in order: as many as fit, or a part of the first.

    Args:
        step, lineage: the version.
        offset: the number at which the requested part of a total begins; 0 where a total fits a reply.
    """

    topic = "totals"
    sender = MemberRole.READER
    receiver = MemberRole.PEER
    rejections = (Reason.NOT_KEPT,)

    step: Step
    lineage: Lineage
    offset: Annotated[int, whole()]

    @property
    def version(self) -> Version:
        """The version before the first of the steps."""
        return Version(self.step, self.lineage)
