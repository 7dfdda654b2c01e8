"""The donor: sends the state of a stage to joining peers while training goes on.

A joining peer receives the state of one step, exact to the bit. The donor copies the state at the first request. It
keeps the last totals while a peer needs them, so that a slow peer can apply those steps itself. It keeps the copy while
the totals reach back to it. A peer needs the totals if, within the last `MAX_TOTALS` steps, it sent a request here,
came to this stage or missed its first step. Otherwise the donor keeps one total, for a peer that misses the next step.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipelined.actors.device.executor import ComputeQueue
from pipelined.membership.messaging.fields import Malformed
from pipelined.membership.messaging.reasons import Reason
from pipelined.state.stages.applied_steps import AppliedStep
from pipelined.state.stages.chunks import Manifest, TransferError, chunk_of, describe
from pipelined.state.stages.messages import FetchChunk, FetchTotals, MissedTotals, StateChunk, StateManifest
from pipelined.state.stages.stateful_stage import StatefulStage
from pipelined.state.stages.versions import Version
from transports import Block
from transports.rpc import Party, Rejected

InBackground = Callable[[Callable[[], Manifest]], Awaitable[Manifest]]
MAX_TOTALS = 12
"""Upper limit of kept totals. With an optimizer of two moments they take the bytes of four states.

A peer that fetches a total in less than four fifths of a step's time fetches the copy, and the totals of the steps
taken meanwhile, before the first of those is dropped. A peer that needs more than a step's time never catches up.
"""
AT_ONCE = 16 << 20
"""Upper limit of the bytes of totals in one reply. If totals are small, a distant peer gets all that it misses in one
round trip; a larger total comes in parts.
"""


@dataclass
class StateCopy:
    """A copy of the state of one version.

    Attributes:
        manifest: of the copy; None until it is computed.
    """

    version: Version
    state: Mapping[str, Block]
    manifest: Manifest | None = None


class Donor:
    """Sends the state of one stage, and the totals of its last steps.

    Args:
        stage: read on its device, between two pieces of work.
        in_background: computes the manifest of a copy while training goes on; that takes longer than the copy.
    """

    def __init__(self, stage: StatefulStage, queue: ComputeQueue, in_background: InBackground):
        self._stage, self._queue, self._in_background = stage, queue, in_background
        self._copy: StateCopy | None = None
        self._applied_steps: deque[AppliedStep] = deque()
        self._steps = 0
        self._last_request = dict[str, int]()  # by address: the step at which a peer last needed totals
        self._manifest_lock = asyncio.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes kept for other peers: the copy of the state, and the totals beside the last one."""
        copy = self._copy.state.values() if self._copy else ()
        totals = [step.total.nbytes for step in self._applied_steps]
        return sum(block.nbytes for block in copy) + sum(totals[:-1])

    async def manifest(self, sender: Party, version: Callable[[], Version]) -> StateManifest:
        """The manifest of the kept copy, which is made first if there is none.

        Args:
            version: returns the version of the stage; called when the state is copied, because a step may come before.
        """

        def copy() -> StateCopy:
            if self._copy is None:
                self._copy = StateCopy(version(), copy_state(self._stage.state()))
            return self._copy

        self._record_request(sender)
        async with self._manifest_lock:  # once for all requests
            state_copy = self._copy or (await self._queue.run("copy", copy))[0]
            if state_copy.manifest is None:
                state_copy.manifest = await self._in_background(lambda: describe(state_copy.state))
        manifest = state_copy.manifest
        return StateManifest(*state_copy.version, manifest.root, np.frombuffer(manifest.digests, np.uint8))

    async def chunk(self, request: FetchChunk, sender: Party) -> StateChunk:
        """One chunk of the state with this root. Raises Rejected: it is not kept; Malformed: no such chunk."""
        self._record_request(sender)
        copy = self._copy
        if copy is None or copy.manifest is None or request.root != copy.manifest.root:
            raise Rejected(Reason.NOT_KEPT)
        try:
            return StateChunk(chunk_of(copy.state, copy.manifest, request.index))
        except TransferError as error:
            raise Malformed(str(error)) from error

    async def totals(self, request: FetchTotals, sender: Party) -> MissedTotals:
        """The totals of the steps from a version on, in order, as many as fit, or a part of the first.

        Raises:
            Rejected: the first of these totals is not kept. Malformed: no part of it begins there.
        """
        self._record_request(sender)
        version = request.version
        missed_steps = list[AppliedStep]()
        for step in self._applied_steps:
            if step.version_before == version:
                missed_steps.append(step)
                version = step.version_after
        if not missed_steps:
            raise Rejected(Reason.NOT_KEPT, step=version.step)
        size = missed_steps[0].total.size
        max_numbers = AT_ONCE // missed_steps[0].total.itemsize
        if request.offset and request.offset >= size:
            raise Malformed(f"no part of a total begins there (offset: {request.offset}, numbers: {size})")
        missed_steps = missed_steps[: max(1, max_numbers // max(1, size))]
        scales = [step.scale for step in missed_steps]
        lineages = [step.version_after.lineage for step in missed_steps]
        totals = [Block.of(step.total[request.offset :][:max_numbers]) for step in missed_steps]
        return MissedTotals(tuple(scales), tuple(lineages), tuple(totals))

    def keep_step(self, version_before: Version, version_after: Version, total: np.ndarray, scale: float) -> None:
        """Note a step with its total, which the caller must not write to any more."""
        self._applied_steps.append(AppliedStep(version_before, version_after, total, scale))
        self._steps += 1
        self._drop_unneeded()

    def update_receivers(self, waiting_peers: Set[str], arrived_peers: Set[str]) -> None:
        """Update which peers of this stage need totals, by address; called after every step.

        Args:
            waiting_peers: peers that are joining, or took no part in the last step.
            arrived_peers: peers that took part in it, and need nothing.
        """
        last_request = {party: step for party, step in self._last_request.items() if party not in arrived_peers}
        self._last_request = {
            party: step for party, step in last_request.items() if party in waiting_peers or self._is_recent(step)
        }
        for party in waiting_peers:
            self._last_request.setdefault(party, self._steps)
        self._drop_unneeded()

    def _record_request(self, sender: Party) -> None:
        self._last_request[sender.address] = self._steps

    def _is_recent(self, step: int) -> bool:
        return self._steps - step <= MAX_TOTALS

    def _drop_unneeded(self) -> None:
        is_needed = any(map(self._is_recent, self._last_request.values()))
        while len(self._applied_steps) > (MAX_TOTALS if is_needed else 1):
            self._applied_steps.popleft()
        oldest = self._applied_steps[0].version_before if self._applied_steps else None
        if not is_needed or (self._copy and oldest and self._copy.version.step < oldest.step):
            self._copy = None


def copy_state(state: Mapping[str, Any]) -> dict[str, Block]:
    """A copy of a state in memory of its own, so that steps do not change it."""
    views = {name: Block.of(value) for name, value in state.items()}
    return {name: Block(view.dtype, view.shape, memoryview(bytearray(view.data))) for name, view in views.items()}
