"""The saver: one peer saves its stage while training goes on, and lists its saved steps in the directory.

While its last state is still being written, the saver waits before it copies the next one. It does not skip a step, so
that all stages save the same steps.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, TypeVar

from pipelined.membership.registration import Registration
from pipelined.process.reporting.events import emit, warn
from pipelined.state.stages.store import CheckpointStore, DamagedSave, StoreError
from pipelined.state.stages.versions import SAVED, SavedStage, SavedStages, Version
from pipelined.state.tensor_specs import TensorSpecs
from transports import Block, Nursery

T = TypeVar("T")


class Saver:
    """Saves the stages of one peer, and loads saved ones.

    Args:
        store: to save to; None: nothing is saved.
        interval: steps between two saves; 0: saves only where the owner asks for one, at the end.
        threads: whether to read and write in a thread; False: in the event loop.
        on_saved: called after each save, when the saved stages have been listed again.

    Attributes:
        saved_stages: the saved stages when this peer last listed them, without those that it found damaged; empty if
            that failed.
    """

    def __init__(self, store: CheckpointStore | None, interval: int, threads: bool, on_saved: Callable[[], None]):
        self.saved_stages: Sequence[SavedStage] = ()
        self._listing_error = self._write_error = ""
        self._store = store
        self._interval = interval
        self._threads = threads
        self._on_saved = on_saved
        self._write_task: asyncio.Task[None] | None = None
        self._registration: Registration | None = None
        self._published_record = SavedStages([])
        self._damaged_stages = set[SavedStage]()
        self._unread_request: tuple[Sequence[SavedStage], TensorSpecs] | None = None
        self._lost_stages: Set[int] = frozenset()

    @property
    def saves(self) -> bool:
        """Whether this peer saves."""
        return self._store is not None

    @property
    def failure(self) -> str:
        """Why the last save, or the last listing, failed; "": both succeeded."""
        return self._write_error or self._listing_error

    @property
    def published_interval(self) -> int:
        """Steps between two saves for this peer's record in the directory; 0: none before the end, or saving fails."""
        return self._interval if self.saves and not self.failure else 0

    def is_due(self, step: int) -> bool:
        """Whether the state of this step must be saved."""
        return self.saves and self._interval > 0 and step > 0 and step % self._interval == 0

    async def list_saved(self) -> None:
        """List the saved stages. If that fails the peer continues, and `failure` holds the reason."""
        if self._store is None:
            return
        try:
            saved_stages = await self._run_in_thread(self._store.saved_stages)
            self._listing_error = ""
            self._damaged_stages &= {*saved_stages}
            self.saved_stages = sorted(stage for stage in saved_stages if stage not in self._damaged_stages)
        except OSError as error:
            self.saved_stages = ()
            self._listing_error = f"what was saved cannot be listed ({error}); look at the directory's disk"
            warn("saves not listed", why=error)

    def record(self) -> SavedStages:
        """What this peer can read, and what it could not."""
        return SavedStages([*map(list, self.saved_stages)], [*map(list, sorted(self._damaged_stages))])

    async def list_if_lost(self, lost_stages: Set[int]) -> None:
        """List the saved stages again when further stages are lost: the peers that had listed them are gone."""
        if lost_stages - self._lost_stages:
            await self.list_saved()
        self._lost_stages = lost_stages

    async def publish(self, registration: Registration) -> None:
        """Write the list of saved stages to the directory, if it has changed.

        Raises: as `Registration.put`.
        """
        if self._store is None:
            return
        if self._registration is None or self._registration.lease is not registration.lease:
            self._registration = registration.with_prefix(SAVED)
            self._published_record = SavedStages([])
        if (record := self.record()) != self._published_record:
            await self._registration.put(record)
            self._published_record = record

    async def save(self, tasks: Nursery, save: SavedStage, copy: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
        """Copy a state, then start a task that writes the copy while training goes on.

        Waits first until the previous write has ended. Without a store nothing is saved.

        Args:
            tasks: the nursery of the writing task.
        """
        if self._store is None:
            return
        await self.wait_written()
        self._write_task = tasks.create_task(self._write(self._store, save, await copy()))

    async def wait_written(self) -> None:
        """Wait until no write is under way."""
        while self._write_task is not None and not self._write_task.done():
            await asyncio.wait([self._write_task])

    async def find(self, version: Version, specs: TensorSpecs) -> Mapping[str, Block] | None:
        """The tensors of these specs at this version; None if they are not saved here, or cannot be read.

        Lists the saved stages again, because another peer may save in the same place. What could not be read is read
        again only when other stages of the version are listed.
        """
        if self._store is None:
            return None
        await self._list_again()
        own_stages = [stage for stage in self.saved_stages if stage.version == version]
        if own_stages and (own_stages, specs) != self._unread_request:
            try:
                return await self._run_in_thread(partial(self._store.load, own_stages[0], specs))
            except StoreError as error:
                self._unread_request = own_stages, specs
                await self.note_unread(version, error)
        return None

    async def note_unread(self, version: Version, error: StoreError) -> None:
        """Report why a version was not read; a damaged stage is not listed any more. Raises: as `Registration.put`."""
        if not isinstance(error, DamagedSave):
            warn("save not read", step=version.step, why=error)
        elif error.saved_stage not in self._damaged_stages:
            warn("save damaged", stage=error.saved_stage.stage, step=version.step, why=error)
            self._damaged_stages.add(error.saved_stage)
        await self._list_again()

    async def _list_again(self) -> None:
        await self.list_saved()
        if self._registration is not None:
            await self.publish(self._registration)

    async def _write(self, store: CheckpointStore, save: SavedStage, state: Mapping[str, Any]) -> None:
        try:
            if writer := await self._run_in_thread(partial(store.save, save, state)):
                emit("save skipped", stage=save.stage, step=save.step, why=f"{writer} is saving this stage")
            else:
                self._write_error = ""
                self._damaged_stages.discard(save)
                self._unread_request = None
                emit("stage saved", stage=save.stage, step=save.step)
        except StoreError as error:
            self._write_error = str(error)
            warn("save failed", stage=save.stage, step=save.step, why=error)
        await self.list_saved()
        self._on_saved()

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work) if self._threads else work()
