"""Giving a stage's state to those who join, while training goes on.

What a joiner gets is the state of one step, to the bit. A copy is made when the first joiner asks. The last totals are
kept while a peer needs them, so that a joiner that took long takes those steps itself; and the copy, as long as they
reach back to it. A peer needs them if, within the last `MOST_TOTALS` steps, it asked for something here, came to this
stage or missed its first step. Otherwise one total is kept, for a peer that misses the next step.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelined.actors.executor import Device
from pipelined.state.manifest import Manifest, TransferError, cut, describe
from pipelined.state.steps import AppliedStep
from pipelined.swarm.protocol import field, whole
from pipelined.swarm.records import Version
from pipelined.swarm.stages.stage import SwarmStage
from transports import Block
from transports.rpc import Rejected, Request, Response

Beside = Callable[[Callable[[], Manifest]], Awaitable[Manifest]]
MOST_TOTALS = 12
"""Totals that are kept at most: where there are two moments, as many bytes as four states have.

Whoever fetches a total in less than four fifths of a step's time has fetched the copy, and what was taken meanwhile,
before the first of them goes; whoever takes longer than a step never arrives.
"""
AT_ONCE = 16 << 20
"""Bytes of totals that one answer brings at most, where they are more than one: of small ones a joiner that is far away
gets all that it misses in one round trip."""


@dataclass
class Copy:
    """The state of one version.

    Attributes:
        manifest: what it consists of, as soon as somebody has worked that out.
    """

    version: Version
    state: Mapping[str, Block]
    manifest: Manifest | None = None


class Donor:
    """What one holding gives away.

    Args:
        stage: read on its device, between two pieces of work.
        beside: works out what a copy consists of, which takes longer than the copy, while training goes on.
    """

    def __init__(self, stage: SwarmStage, device: Device, beside: Beside):
        self._stage, self._device, self._beside = stage, device, beside
        self._copy: Copy | None = None
        self._applied: deque[AppliedStep] = deque()
        self._steps, self._waiting = (
            0,
            dict[str, int](),
        )  # by address: at which step a peer was last known to need totals
        self._describing = asyncio.Lock()

    async def manifest(self, request: Request, version: Callable[[], Version]) -> Response:
        """Which state this is: digests of its chunks, with the notes `step`, `lineage` and `root`.

        Args:
            version: of the stage; asked when the device is at the copy, for a step may be taken before that.
        """

        def copy() -> Copy:
            if self._copy is None:
                self._copy = Copy(version(), copied(self._stage.state()))
            return self._copy

        self._note(request)
        async with self._describing:  # once for all who ask
            kept = self._copy or (await self._device.run("copy", copy))[0]
            if kept.manifest is None:
                kept.manifest = await self._beside(lambda: describe(kept.state))
        return Response((kept.manifest.digests,), {**kept.version._asdict(), "root": kept.manifest.root})

    async def chunk(self, request: Request) -> Response:
        """One chunk of the state of this root. Raises Rejected: that is not kept here (any more)."""
        self._note(request)
        copy = self._copy
        if copy is None or copy.manifest is None or request.note.get("root") != copy.manifest.root:
            raise Rejected("not kept")
        try:
            return Response(cut(copy.state, copy.manifest, request.note.get("index")))
        except TransferError as error:
            raise Rejected("malformed", why=str(error)) from error

    async def totals(self, request: Request) -> Response:
        """What the steps from a version on were taken with, one after another, and the notes `scales` and `lineages`,
        after each: as many as one answer takes, at least one.

        Raises:
            Rejected: that is not kept here (any more).
        """
        self._note(request)
        at, found, nbytes = (whole(request.note, "step"), field(request.note, "lineage")), list[AppliedStep](), 0
        for taken in self._applied:
            if taken.before == at and (not found or nbytes + taken.total.nbytes <= AT_ONCE):
                found.append(taken)
                at, nbytes = taken.after, nbytes + taken.total.nbytes
        if not found:
            raise Rejected("not kept", step=at[0])
        scales, lineages = [each.scale for each in found], [each.after.lineage for each in found]
        return Response(tuple(each.total for each in found), {"scales": scales, "lineages": lineages})

    def took(self, before: Version, after: Version, total: np.ndarray, scale: float) -> None:
        """A step was taken with this total, which nobody writes to any more."""
        self._applied.append(AppliedStep(before, after, total, scale))
        self._steps += 1
        self._forget()

    def expect(self, waiting: Set[str], arrived: Set[str]) -> None:
        """Account for the peers of this stage, by address; called after every step.

        Args:
            waiting: those that join, or had no part in the last step.
            arrived: those that had a part in it, and need nothing.
        """
        asked = {each: at for each, at in self._waiting.items() if each not in arrived}
        self._waiting = {each: at for each, at in asked.items() if each in waiting or self._is_recent(at)}
        for each in waiting:
            self._waiting.setdefault(each, self._steps)
        self._forget()

    def _note(self, request: Request) -> None:
        self._waiting[request.sender.address] = self._steps

    def _is_recent(self, step: int) -> bool:
        return self._steps - step <= MOST_TOTALS

    def _forget(self) -> None:
        needed = any(map(self._is_recent, self._waiting.values()))
        while len(self._applied) > (MOST_TOTALS if needed else 1):
            self._applied.popleft()
        if not needed or (self._copy and self._applied and self._copy.version.step < self._applied[0].before.step):
            self._copy = None


def copied(state: Mapping[str, Any]) -> dict[str, Block]:
    """A state of its own, that no step changes."""
    views = {name: Block.of(value) for name, value in state.items()}
    return {name: Block(view.dtype, view.shape, memoryview(bytearray(view.data))) for name, view in views.items()}
