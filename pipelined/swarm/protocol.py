"""What questions of the swarm say of themselves, read with suspicion: whatever is not as it should be is refused.

A round's name is (term, attempt): the term is the revision at which its conductor began to lead, so that names are in
the order in which rounds were begun, whoever leads.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pipelined.swarm.records import Peer, Phase
from transports import Block
from transports.rpc import Refusal

RoundName = tuple[int, int]
MOST = 1 << 62
MOST_NUMBER = 1e300
"""Numbers off the network are added up: of so large ones a sum is still finite."""


def field(note: Any, name: str) -> Any:
    """A field of a note, None where it has none. Raises Refusal: it is no note at all."""
    if type(note) is not dict:
        raise Refusal("malformed", why="no note")
    return note.get(name)


def whole(note: Any, name: str) -> int:
    """A number from 0 up."""
    value = field(note, name)
    if type(value) is not int or not 0 <= value < MOST:
        raise Refusal("malformed", why=f"{name} is not a number from 0 up (got: {value!r:.40})")
    return value


def read_round(value: Any) -> RoundName:
    """The name of a round."""
    if (
        type(value) is not list
        or len(value) != 2
        or any(type(part) is not int or not 0 <= part < MOST for part in value)
    ):
        raise Refusal("malformed", why=f"not a round (got: {value!r:.40})")
    return value[0], value[1]


def told(name: RoundName) -> str:
    """The name as records have it."""
    return f"{name[0]}.{name[1]}"


def tell_members(members: Sequence[Peer]) -> list[list[Any]]:
    """Members of a round as they travel."""
    return [[member.name, member.address, member.incarnation] for member in members]


def read_members(value: Any) -> list[Peer]:
    """Members of a round, in their order."""
    if type(value) is not list or not value:
        raise Refusal("malformed", why="no members")
    members = []
    for entry in value:
        if type(entry) is not list or [type(part) for part in entry] != [str, str, int]:
            raise Refusal("malformed", why=f"not a member (got: {entry!r:.80})")
        members.append(Peer(*entry, stage=0, phase=Phase.SERVING, model=""))
    return members


class Score(NamedTuple):
    """What a microbatch of validation data comes to: its loss summed over so many samples."""

    loss: float
    samples: int


class Done(NamedTuple):
    """What a trainer's slot is through with.

    Args:
        step, index: which microbatch.
        revision: of the head for which it was.
        counted: by stage, who counted it.
        score: of validation data, which nobody counts; else None.
    """

    step: int
    revision: int
    index: int
    counted: dict[int, str]
    score: Score | None


def read_done(value: Any, stages: int) -> Done | None:
    """What a trainer's slot is through with, if anything."""
    if value is None:
        return None
    counted = field(value, "counted")
    if type(counted) is not list or any(
        type(entry) is not list or [type(part) for part in entry] != [int, str] or not 0 <= entry[0] < stages
        for entry in counted
    ):
        raise Refusal("malformed", why=f"not who counted it, by stage (got: {counted!r:.80})")
    score = _read_score(field(value, "score"))
    return Done(whole(value, "step"), whole(value, "revision"), whole(value, "index"), dict(counted), score)


def _read_score(value: Any) -> Score | None:
    if value is None:
        return None
    told = dict(zip(Score._fields, value, strict=False)) if type(value) is list else {}
    return Score(number(told, "loss"), whole(told, "samples"))


def number(note: Any, name: str) -> float:
    """A number of at most `MOST_NUMBER`."""
    value = field(note, name)
    if type(value) not in (int, float) or not abs(value) <= MOST_NUMBER:
        raise Refusal("malformed", why=f"{name} is not a number up to {MOST_NUMBER:g} (got: {value!r:.40})")
    return float(value)


def check_layouts(blocks: Sequence[Block], wanted: Sequence[tuple[str, tuple[int, ...]]], fewer: bool = False) -> None:
    """Arrays must be of exactly these dtypes and shapes.

    Args:
        fewer: they may be of fewer samples, but of one at least, alike in all.
    """
    got = [(block.dtype, tuple(block.shape)) for block in blocks]
    samples = {shape[:1] for _, shape in got}
    if fewer and len(samples) == 1 and all((1,) <= have <= shape[:1] for have in samples for _, shape in wanted):
        wanted = [(dtype, have + tuple(shape[1:])) for have in samples for dtype, shape in wanted]
    if got != [(dtype, tuple(shape)) for dtype, shape in wanted]:
        raise Refusal(
            "malformed", why=f"other arrays than the stage takes (got: {got!r:.120}, expected: {wanted!r:.120})"
        )


def digest_of(array: np.ndarray) -> bytes:
    """16 bytes that are equal where all bits are."""
    return hashlib.blake2b(memoryview(array).cast("B"), digest_size=16).digest()
