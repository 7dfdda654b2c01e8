"""Giving a stage's state to those who join, while training goes on.

The one rule: what a joiner gets is the state of one step, to the bit. A copy is made when the first one asks; the
totals of the steps taken since are kept beside it, so that a joiner who took long takes those steps itself. Copies go
when nobody joins any more, or joiners took too long; the last total is kept always, for a peer that missed one step.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelined.device import Device
from pipelined.swarm.notes import field, whole
from pipelined.swarm.records import Point
from pipelined.swarm.stage import SwarmStage
from pipelined.swarm.transfer import Manifest, TransferError, cut, describe
from transports import Block
from transports.endpoints import Answer, Question, Refusal

Beside = Callable[[Callable[[], Manifest]], Awaitable[Manifest]]
MOST_COPIES = 4
"""Totals that are kept beside a copy come to so many copies' bytes at the most; then who still fetches it begins anew.

That is twelve totals where there are two moments. Whoever fetches a total in less than four fifths of a step's time has
fetched the copy, and what was taken meanwhile, before that; whoever takes longer than a step never arrives.
"""


@dataclass
class Copy:
    """A state as it was at one point.

    Attributes:
        manifest: what it consists of, as soon as somebody has worked that out.
    """

    point: Point
    state: Mapping[str, Block]
    manifest: Manifest | None = None

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.state.values())


@dataclass(frozen=True)
class Taken:
    """A step that was taken: from where to where, and what with."""

    before: Point
    after: Point
    total: np.ndarray
    scale: float


class Donor:
    """What one holding gives away.

    Args:
        stage: read on its device, between two pieces of work.
        beside: works out what a copy consists of, which takes longer than the copy, while training goes on.
    """

    def __init__(self, stage: SwarmStage, device: Device, beside: Beside):
        self._stage, self._device, self._beside = stage, device, beside
        self._copy: Copy | None = None
        self._taken: deque[Taken] = deque()
        self._describing = asyncio.Lock()

    async def manifest(self, point: Callable[[], Point]) -> Answer:
        """Which state this is: digests of its chunks, with the notes `step`, `lineage` and `root`.

        Args:
            point: of the stage; asked when the device is at the copy, for a step may be taken before that.
        """

        def copy() -> Copy:
            if self._copy is None:
                self._copy = Copy(point(), copied(self._stage.state()))
            return self._copy

        async with self._describing:  # once for all who ask
            kept = self._copy or (await self._device.run("copy", copy))[0]
            if kept.manifest is None:
                kept.manifest = await self._beside(lambda: describe(kept.state))
        return Answer((kept.manifest.digests,), {**kept.point._asdict(), "root": kept.manifest.root})

    async def chunk(self, question: Question) -> Answer:
        """One chunk of the state of this root. Raises Refusal: that is not kept here (any more)."""
        copy = self._copy
        if copy is None or copy.manifest is None or question.note.get("root") != copy.manifest.root:
            raise Refusal("not kept")
        try:
            return Answer(cut(copy.state, copy.manifest, question.note.get("index")))
        except TransferError as error:
            raise Refusal("malformed", why=str(error)) from error

    async def total(self, question: Question) -> Answer:
        """What a step was taken with, and the notes `scale` and `lineage`, after it.

        Raises:
            Refusal: that is not kept here (any more).
        """
        before = whole(question.note, "step"), field(question.note, "lineage")
        for taken in self._taken:
            if taken.before == before:
                return Answer((taken.total,), {"scale": taken.scale, "lineage": taken.after.lineage})
        raise Refusal("not kept", step=before[0])

    def took(self, before: Point, after: Point, total: np.ndarray, scale: float) -> None:
        """A step was taken with this total, which nobody writes to any more."""
        self._taken.append(Taken(before, after, total, scale))
        if self._copy is not None and len(self._taken) * total.nbytes > MOST_COPIES * self._copy.nbytes:
            self._copy = None
        while len(self._taken) > 1 and (self._copy is None or self._taken[0].before.step < self._copy.point.step):
            self._taken.popleft()

    def nobody_joins(self) -> None:
        """Let go of what is kept for joiners."""
        self._copy = None


def copied(state: Mapping[str, Any]) -> dict[str, Block]:
    """A state of its own, that no step changes."""
    views = {name: Block.of(value) for name, value in state.items()}
    return {name: Block(view.dtype, view.shape, memoryview(bytearray(view.data))) for name, view in views.items()}
