"""The fields of a swarm's requests and replies. Every field is checked when it is read; a wrong one is refused.

A round's name is (term, attempt). The term is the revision at which its leader began to lead, so a later round has a
greater name, under any leader.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pipelined.membership.records import Peer, Phase
from pipelined.swarm.stages.stage import Microbatch
from transports import Block
from transports.rpc import Rejected, Request, Response
from transports.rpc.fields import MOST, MOST_NUMBER, field, number, whole

RoundName = tuple[int, int]


def read_round(value: Any) -> RoundName:
    """Read the name of a round."""
    if (
        type(value) is not list
        or len(value) != 2
        or any(type(part) is not int or not 0 <= part < MOST for part in value)
    ):
        raise Rejected("malformed", why=f"not a round (got: {value!r:.40})")
    return value[0], value[1]


def round_text(name: RoundName) -> str:
    """The name of a round as records have it."""
    return f"{name[0]}.{name[1]}"


def tell_members(members: Sequence[Peer]) -> list[list[Any]]:
    """Members of a round as they are sent."""
    return [[member.name, member.address, member.incarnation] for member in members]


def read_members(value: Any) -> list[Peer]:
    """Read the members of a round, in their order."""
    if type(value) is not list or not value:
        raise Rejected("malformed", why="no members")
    members = []
    for entry in value:
        if type(entry) is not list or [type(part) for part in entry] != [str, str, int]:
            raise Rejected("malformed", why=f"not a member (got: {entry!r:.80})")
        members.append(Peer(*entry, stage=0, phase=Phase.SERVING, model=""))
    return members


class Score(NamedTuple):
    """The loss of a microbatch of validation data, summed over this many samples."""

    loss: float
    samples: int


class WorkItem(NamedTuple):
    """A microbatch that the leader assigns to a slot of a trainer.

    Args:
        count: the stages that must count it; empty: it is validation data.
        lineage: of the parameters that it is for.
        revision: of the head at which it was assigned; the work is useless after the head has moved on.
    """

    which: Microbatch
    count: set[int]
    lineage: str
    revision: int


class WorkReport(NamedTuple):
    """A microbatch that a trainer's slot has taken through the stages.

    Args:
        step, index: of the microbatch.
        revision: of the head at which it was assigned.
        counted: by stage, the peer that counted it.
        score: of validation data, which no stage counts; else None.
    """

    step: int
    revision: int
    index: int
    counted: dict[int, str]
    score: Score | None


class StepPassed(Exception):
    """The step of a microbatch has passed."""


class NonFinite(Exception):
    """The values of a microbatch are missing, or not finite."""


def read_work_item(note: Any) -> WorkItem:
    """Read the leader's reply to a slot. Raises Rejected: it is not a microbatch."""
    stages, lineage = field(note, "stages"), field(note, "lineage")
    if type(stages) is not list or any(type(stage) is not int for stage in stages) or type(lineage) is not str:
        raise Rejected("malformed", why=f"no stages, or no lineage (got: {stages!r:.80}, {lineage!r:.40})")
    which = Microbatch(whole(note, "step"), whole(note, "index"))
    return WorkItem(which, set(stages), lineage, whole(note, "revision"))


def read_work_report(value: Any, stages: int) -> WorkReport | None:
    """Read the report of a trainer's slot; None: the slot has nothing to report."""
    if value is None:
        return None
    counted = field(value, "counted")
    if type(counted) is not list or any(
        type(entry) is not list or [type(part) for part in entry] != [int, str] or not 0 <= entry[0] < stages
        for entry in counted
    ):
        raise Rejected("malformed", why=f"no map of stages to the peers that counted it (got: {counted!r:.80})")
    score = _read_score(field(value, "score"))
    return WorkReport(whole(value, "step"), whole(value, "revision"), whole(value, "index"), dict(counted), score)


def _read_score(value: Any) -> Score | None:
    if value is None:
        return None
    fields = dict(zip(Score._fields, value, strict=False)) if type(value) is list else {}
    return Score(number(fields, "loss"), whole(fields, "samples"))


def read_losses(response: Response, samples: int) -> list[float]:
    """Read the losses of this many samples of validation data.

    Raises:
        NonFinite: they are missing, or not finite.
    """
    losses = [loss for block in response.blocks if block.dtype == "float64" for loss in block.numpy().ravel().tolist()]
    if len(losses) != samples or not all(map(math.isfinite, losses)):
        finite = sum(map(math.isfinite, losses))
        raise NonFinite(f"an evaluation answered with no losses (finite: {finite} of {samples})")
    return losses


def check_layouts(blocks: Sequence[Block], wanted: Sequence[tuple[str, tuple[int, ...]]], fewer: bool = False) -> None:
    """Raises Rejected: arrays have other dtypes or shapes than expected.

    Args:
        fewer: accept arrays of fewer samples, but at least one, the same number in all.
    """
    got = [(block.dtype, tuple(block.shape)) for block in blocks]
    samples = {shape[:1] for _, shape in got}
    if fewer and len(samples) == 1 and all((1,) <= have <= shape[:1] for have in samples for _, shape in wanted):
        wanted = [(dtype, have + tuple(shape[1:])) for have in samples for dtype, shape in wanted]
    if got != [(dtype, tuple(shape)) for dtype, shape in wanted]:
        raise Rejected(
            "malformed", why=f"other arrays than the stage takes (got: {got!r:.120}, expected: {wanted!r:.120})"
        )


def digest_of(array: np.ndarray) -> bytes:
    """16 bytes that are equal if all bits are equal."""
    return hashlib.blake2b(memoryview(array).cast("B"), digest_size=16).digest()


NOT_FINITE = "not finite"
"""A received part, or the total, is not finite."""
PART_NOT_FINITE = "part not finite"
"""This member's own part is not finite; the total of the others may be finite."""
BEYOND_CODEC = "beyond codec"
"""Sums are finite, but the codec cannot carry them."""
PARTIES = ("by", "member")
"""Facts of a refusal: the two members between which a round failed."""


def parties_of(error: BaseException) -> dict[str, str]:
    """The two members between which a round failed, as a refusal names them; empty if it names none."""
    facts = error.facts if isinstance(error, Rejected) else {}
    named = {name: facts[name] for name in PARTIES if type(facts.get(name)) is str}
    return named if len(named) == len(PARTIES) else {}


def grouped(request: Request, groups: int) -> Iterator[tuple[tuple[Block, ...], Any]]:
    """A request's arrays in their groups (inputs; gradients), each with the note of its coding.

    Raises:
        Rejected: "malformed".
    """
    codes, counts = request.note.get("codecs"), request.note.get("blocks")
    if type(codes) is not list or type(counts) is not list or not len(codes) == len(counts) == groups:
        raise Rejected("malformed", why="not as many groups of arrays as the topic has")
    if any(type(count) is not int or count < 0 for count in counts) or sum(counts) != len(request.blocks):
        raise Rejected("malformed", why="the groups do not make up the arrays")
    start = 0
    for code, count in zip(codes, counts, strict=True):
        yield request.blocks[start : start + count], code
        start += count


def inherited(request: Request, mine: np.ndarray, batch: int) -> tuple[np.ndarray, list[int], list[float]]:
    """Read what a leaving peer had counted: its sum, the indices in it, and their losses.

    Args:
        mine: this peer's sum, to which the other is added.
        batch: microbatches of a step.
    Raises:
        Rejected: "malformed", "not finite".
    """
    if [block.dtype for block in request.blocks] != [mine.dtype.name, "int64", "float64"]:
        raise Rejected("malformed", why="not sums, indices and losses")
    sums, indices, losses = (block.numpy() for block in request.blocks)
    if sums.shape != mine.shape or indices.ndim != 1 or indices.shape != losses.shape:
        raise Rejected("malformed", why=f"another stage's sums (shape: {sums.shape}, here: {mine.shape})")
    if not (np.isfinite(sums).all() and np.isfinite(losses).all()):
        raise Rejected("not finite", why="sums or losses of a peer that leaves")
    if len(set(indices.tolist())) < len(indices) or not all(0 <= index < batch for index in indices.tolist()):
        raise Rejected("malformed", why="indices of no step")
    return sums, indices.tolist(), losses.tolist()


@dataclass(frozen=True, slots=True)
class PrepareReply:
    """A peer's reply to `prepare`: its losses by microbatch, and its load (see `Load.take`)."""

    peer: Peer
    losses: Mapping[int, float]
    load: float


def read_square(response: Response) -> float:
    """Read the square of a total's norm. Raises Rejected: it is not a square."""
    square = number(response.note, "square")
    if square < 0:
        raise Rejected("malformed", why=f"the square of a norm is below 0 (got: {square:g})")
    return square


def read_digest(response: Response) -> bytes:
    """Read the digest of a total. Raises Rejected: it is not a digest."""
    digest = field(response.note, "digest")
    if type(digest) is not bytes:
        raise Rejected("malformed", why=f"no digest of a total (got: {digest!r:.40})")
    return digest


def read_prepare_reply(peer: Peer, response: Response) -> PrepareReply:
    """Read what a peer has counted.

    Raises:
        Rejected: the reply cannot be read, or has no valid losses; the peer's sum is left out then.
    """
    if [(block.dtype, len(block.shape)) for block in response.blocks] != [("int64", 1), ("float64", 1)]:
        raise Rejected("malformed", why="not indices and losses")
    indices, losses = (block.numpy() for block in response.blocks)
    if indices.shape != losses.shape or not (np.abs(losses) <= MOST_NUMBER).all():
        raise Rejected("malformed", why=f"not a loss up to {MOST_NUMBER:g} for each index")
    return PrepareReply(peer, dict(zip(indices.tolist(), losses.tolist(), strict=True)), number(response.note, "load"))
