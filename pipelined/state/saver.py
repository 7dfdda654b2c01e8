"""One peer's saving of its stage while training goes on, and what it tells others that it has saved.

The one rule: a step that is saved is saved by every stage or waited for: a peer whose last state is still being written
takes no other for writing before that is done, so that stages do not save different steps. Knows no peers but its own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from typing import Any, TypeVar

from pipelined.aio.events import emit, warn
from pipelined.aio.nursery import Nursery
from pipelined.directory.registration import Registration
from pipelined.state.manifest import Layout
from pipelined.state.store import CheckpointStore, StoreError
from pipelined.swarm.records import SAVED, Peer, Saved, SavedStage, Version
from transports import Block

T = TypeVar("T")


def choose_saver(peers: Iterable[Peer], step: int) -> Peer | None:
    """The peer that saves a stage at a step; None where there is no such peer.

    Of those that save at this step it is the one that has been a member for longest: a newcomer never takes over.

    Args:
        peers: that serve the stage.
    """
    saving = [peer for peer in peers if peer.saves_every > 0 and step % peer.saves_every == 0]
    return min(saving, key=lambda peer: peer.incarnation, default=None)


class Saver:
    """What one peer saves, and finds again.

    Args:
        store: where; None: nothing is saved.
        every: steps from one save to the next.
        threads: whether the loop has threads to write in.
        news: called when something else lies there than before.

    Attributes:
        saved_stages: what lay there when this peer looked last; nothing where it could not be listed.
    """

    def __init__(self, store: CheckpointStore | None, every: int, threads: bool, news: Callable[[], None]):
        self.saved_stages: Sequence[SavedStage] = ()
        self._unlisted = self._unwritten = ""
        self._store, self._every, self._threads, self._news = store, every, threads, news
        self._writing: asyncio.Task[None] | None = None
        self._place: Registration | None = None
        self._said: Sequence[SavedStage] = ()
        self._unreadable, self._lost = set[SavedStage](), set[int]()

    @property
    def saves(self) -> bool:
        """Whether anything is saved at all."""
        return self._store is not None and self._every > 0

    @property
    def failed(self) -> str:
        """Why the last save, or the last look at what lies there, failed; "": it did not."""
        return self._unwritten or self._unlisted

    @property
    def told_every(self) -> int:
        """What the directory is told: steps from one save to the next; 0: nothing is saved, or saving fails."""
        return self._every if self.saves and not self.failed else 0

    def due(self, step: int) -> bool:
        """Whether a state of this step is to be saved."""
        return self.saves and step > 0 and step % self._every == 0

    async def look(self) -> None:
        """See what lies there. Where that fails the peer goes on, and `failed` says why."""
        if self._store is None:
            return
        try:
            self.saved_stages, self._unlisted = sorted(await self._apart(self._store.saved_stages)), ""
        except OSError as error:
            self.saved_stages, self._unlisted = (
                (),
                f"what was saved cannot be listed ({error}); look at the directory's disk",
            )
            warn("saves not listed", why=error)

    async def look_after(self, lost: Set[int]) -> None:
        """See what lies there where stages are lost that were not before: who saved them last tells of it no more."""
        if lost - self._lost:
            await self.look()
        self._lost = lost

    async def tell(self, place: Registration) -> None:
        """Tell the others what lies there, if they have not heard.

        Raises: as `Registration.put`.
        """
        if self._store is None:
            return
        if self._place is None or self._place.lease is not place.lease:
            self._place, self._said = place.another(SAVED), ()
        saved_stages = self.saved_stages
        if saved_stages != self._said:
            await self._place.put(Saved([list(saved) for saved in saved_stages]))
            self._said = saved_stages

    async def save(self, tasks: Nursery, saved: SavedStage, copy: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        """Copy a state as it is now; it is written while training goes on.

        Args:
            tasks: what the writing is a child of.
        """
        while self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])
        self._writing = tasks.create_task(self._write(saved, await copy()))

    async def find(self, version: Version, layout: Layout) -> Mapping[str, Block] | None:
        """The tensors of this layout as they were there, if they were saved here."""
        for saved in self.saved_stages:
            if saved.version == version and saved not in self._unreadable:
                try:
                    return await self._apart(lambda saved=saved: self._store.load(saved, layout))
                except StoreError:
                    self._unreadable.add(saved)
        return None

    async def _write(self, saved: SavedStage, state: Mapping[str, Any]) -> None:
        try:
            await self._apart(lambda: self._store.save(saved, state))
            self._unwritten = ""
            emit("stage saved", stage=saved.stage, step=saved.step)
        except StoreError as error:
            self._unwritten = str(error)
            warn("save failed", stage=saved.stage, step=saved.step, why=error)
        await self.look()
        self._news()

    async def _apart(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work) if self._threads else work()
