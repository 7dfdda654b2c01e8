"""Fetches the state of a stage from a serving peer, and applies the steps taken meanwhile.

The loaded state is checked against the donor's hashes, and the later steps are applied with the totals of the stage, so
a joining peer equals its donors to the bit. A lost donor is replaced by another. The chunks fetched so far are kept if
the new donor has the same state.
"""

import asyncio
import hashlib
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from pipelined.actors.device.executor import ComputeQueue
from pipelined.aio.latency import Backoff
from pipelined.membership.messaging.client import Probe
from pipelined.membership.messaging.reasons import Reason
from pipelined.membership.view import Member, NoLongerValid
from pipelined.process.reporting.events import warn
from pipelined.state.stages.applied_steps import AppliedStep, fetch_steps
from pipelined.state.stages.chunks import Download, TransferError, expect
from pipelined.state.stages.messages import FetchChunk, FetchManifest
from pipelined.state.stages.stateful_stage import StatefulStage
from pipelined.state.stages.versions import Version
from pipelined.state.tensor_specs import TensorSpecs, specs_of
from transports import Block, Nursery
from transports.rpc import Rejected

M = TypeVar("M", bound=Member)
LoadSaved = Callable[[Version, TensorSpecs], Awaitable[Mapping[str, Block] | None]]
"""Returns the tensors of these specs at a version; None if this peer finds no saved ones."""
UNDER_WAY = 4  # chunk requests in flight
MIN_PAUSE_S, MAX_PAUSE_S = 0.2, 10.0


class StageView(Protocol):
    """The peers that hold a stage and the committed version, as this process last read them from the directory.

    Attributes:
        revision: of the directory when it was last read.
    """

    revision: int

    @property
    def version(self) -> Version:
        """The committed version."""

    def peers_with(self, stage: int) -> Sequence[Member]:
        """The peers that have the state of a stage."""

    def record_revision(self, name: str) -> int:
        """The revision of a peer's last record; 0: it has none."""

    async def next_change(self, seconds: float = math.inf) -> None:
        """Wait for the next change, at most `seconds`."""


class StateFetch:
    """One peer that fetches the state of a stage.

    Args:
        index: of the stage.
        version: of `stage` now, if its state is from this swarm; None: unknown.
        name: of the peer that fetches; it determines the order in which donors are tried.
        load_saved: called if no peer holds the state; None: nothing is saved here.

    Attributes:
        donor: name of the peer that sends the state now; "": no peer does.
        last_error: why the last donor failed; "": no donor has failed.
    """

    def __init__(
        self,
        stage: StatefulStage,
        index: int,
        version: Version | None,
        *,
        name: str,
        view: StageView,
        probe: Probe,
        queue: ComputeQueue,
        load_saved: LoadSaved | None = None,
    ):
        self.version = version
        self._saved_loader = load_saved
        self._probe = probe
        self._name = name
        self._stage = stage
        self._index = index
        self._view = view
        self._queue = queue
        self._client = probe.client
        self._download: Download | None = None
        self.donor = ""
        self._failed_records = set[int]()
        self.last_error = ""
        self._backoff = Backoff(MIN_PAUSE_S, MAX_PAUSE_S)

    async def run(self) -> Version:
        """Fetch and apply until this stage is at the swarm's committed version; returns that version.

        Waits while no peer holds the stage and no saved state is found.
        """
        while self.version != self._view.version:
            donor = self._choose_donor()
            revision = self._view.revision
            if donor is None:
                is_loaded = not self._view.peers_with(self._index) and await self._load_saved()
                if not is_loaded and self._view.revision == revision:
                    await self._view.next_change(self._retry_pause())
                continue
            self.donor = donor.name
            try:
                await self._probe.while_reachable(donor, self._fetch_from(donor))
            except (NoLongerValid, Rejected, TransferError) as error:
                self._failed_records.add(self._view.record_revision(donor.name))
                why = str(error) or "gone, or silent for too long"
                self.last_error = f"{donor.name}: {why}"
                warn("donor failed", peer=self._name, stage=self._index, donor=donor.name, why=why)
        self.donor = ""
        return self.version

    async def _fetch_from(self, donor: Member) -> None:
        if not await self._apply_missed_steps(donor):
            await self._fetch_state(donor)

    def _retry_pause(self) -> float:
        """Seconds until failed donors are tried again without a change in the directory.

        A swarm that makes no progress writes no changes, so the wait must end without one.
        """
        if not self._view.peers_with(self._index):
            return math.inf
        return self._backoff.next()

    async def _load_saved(self) -> bool:
        """Load the saved state of the committed version, if there is one."""
        if self._saved_loader is None:
            return False
        version = self._view.version
        state = await self._saved_loader(version, await self._specs())
        if state is not None:
            await self._load_state(state, version)
        return state is not None

    def _choose_donor(self) -> Member | None:
        """The first peer that has the state, in this peer's own order.

        A failed donor is tried again when all have failed, or when it writes a new record.
        """
        serving_peers = by_preference(self._name, self._view.peers_with(self._index))
        candidates = [
            peer for peer in serving_peers if self._view.record_revision(peer.name) not in self._failed_records
        ]
        if serving_peers and not candidates:
            self._failed_records.clear()
            return None
        return candidates[0] if candidates else None

    async def _apply_missed_steps(self, donor: Member) -> bool:
        """Apply the missing steps, if the donor has their totals. Returns whether the stage is at the version now."""
        try:
            while (
                (own_version := self.version) is not None
                and own_version != (committed_version := self._view.version)
                and own_version.step <= committed_version.step
            ):
                for step in await fetch_steps(self._client, donor, own_version, self._stage.sums):
                    await self._apply_step(step)
        except Rejected as rejection:
            if rejection.reason != Reason.NOT_KEPT:
                raise
        return self.version == self._view.version

    async def _apply_step(self, step: AppliedStep) -> None:
        def apply() -> None:
            self._stage.apply(step.version_before.step, step.total, step.scale)
            self.version = step.version_after

        await self._queue.run("update", apply)

    async def _fetch_state(self, donor: Member) -> None:
        reply = await self._client.request(donor, FetchManifest())
        manifest = expect(await self._specs(), reply.digests.tobytes(), reply.root)
        download = self._download
        if download is None or download.manifest.root != manifest.root:
            download = self._download = Download(manifest)
        limit = asyncio.Semaphore(UNDER_WAY)
        async with Nursery() as tasks:
            for index in list(download.missing):
                tasks.create_task(self._fetch_chunk(donor, download, index, limit))
        await self._load_state(download.finish(), reply.version)

    async def _specs(self) -> TensorSpecs:
        """Dtype and shape of this stage's state. A GPU copies the state to the host for this."""
        return (await self._queue.run("layout", lambda: specs_of(self._stage.state())))[0]

    async def _load_state(self, state: Mapping[str, Block], version: Version) -> None:
        def load() -> None:
            self.version = None  # if loading fails half way, the stage has no version
            self._stage.load(state)
            self._stage.clear()
            self.version = version

        await self._queue.run("load", load)

    async def _fetch_chunk(self, donor: Member, download: Download, index: int, limit: asyncio.Semaphore) -> None:
        async with limit:
            reply = await self._client.request(donor, FetchChunk(download.manifest.root, index))
            download.add(index, reply.parts)


def by_preference(name: str, peers: Iterable[M]) -> list[M]:
    """The peers in the order in which the process of this name tries them: rendezvous hashing.

    Each process has its own order, so many processes spread evenly over the peers; every process computes the same.
    When a peer joins or leaves, the first choice changes only for the processes that prefer this peer.

    Source: Thaler and Ravishankar, Using Name-Based Mappings to Increase Hit Rates (1998), highest random weight.
    """
    return sorted(peers, key=lambda peer: _weight(name, peer.name))


def _weight(name: str, donor: str) -> bytes:
    length = len(name.encode()).to_bytes(4, "big")  # so that two pairs of names never join to the same text
    return hashlib.blake2b(length + name.encode() + donor.encode(), digest_size=8).digest()
