"""Arrays that questions bring to a peer, read with suspicion: as many, of the kinds, and as finite as they must be.

Knows questions and layouts; it must not know what is computed with them, nor codecs.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from transports import Block
from transports.rpc import Question, Refusal


def grouped(question: Question, groups: int) -> Iterator[tuple[tuple[Block, ...], Any]]:
    """A question's arrays in their groups (inputs; gradients), each with the note of how it is coded.

    Raises:
        Refusal: "malformed".
    """
    codes, counts = question.note.get("codecs"), question.note.get("blocks")
    if type(codes) is not list or type(counts) is not list or not len(codes) == len(counts) == groups:
        raise Refusal("malformed", why="not as many groups of arrays as the topic has")
    if any(type(count) is not int or count < 0 for count in counts) or sum(counts) != len(question.blocks):
        raise Refusal("malformed", why="the groups do not make up the arrays")
    start = 0
    for code, count in zip(codes, counts, strict=True):
        yield question.blocks[start : start + count], code
        start += count


def inherited(question: Question, mine: np.ndarray, batch: int) -> tuple[np.ndarray, list[int], list[float]]:
    """What a peer that leaves had counted: its sum, the indices in it, and their losses.

    Args:
        mine: this peer's sum, which the other is to be added to.
        batch: microbatches of a step.
    Raises:
        Refusal: "malformed", "not finite".
    """
    if [block.dtype for block in question.blocks] != [mine.dtype.name, "int64", "float64"]:
        raise Refusal("malformed", why="not sums, indices and losses")
    sums, indices, losses = (block.numpy() for block in question.blocks)
    if sums.shape != mine.shape or indices.ndim != 1 or indices.shape != losses.shape:
        raise Refusal("malformed", why=f"another stage's sums (shape: {sums.shape}, here: {mine.shape})")
    if not (np.isfinite(sums).all() and np.isfinite(losses).all()):
        raise Refusal("not finite", why="sums or losses of a peer that leaves")
    if len(set(indices.tolist())) < len(indices) or not all(0 <= index < batch for index in indices.tolist()):
        raise Refusal("malformed", why="indices of no step")
    return sums, indices.tolist(), losses.tolist()
