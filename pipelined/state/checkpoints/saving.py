"""The saves of one rank of a run, one at a time: while training waits, or while it continues."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from pipelined.errors import AgreedError, UsageError
from pipelined.state.checkpoints.trainer_state import RankState, SaveTarget, save, write
from pipelined.training.rank_trainer import RankTrainer
from transports import Nursery


class CheckpointSaver:
    """Saves a trainer's state, one save at a time. An `async with` block ends it.

    All ranks begin and finish a save after the same steps. An error of a save is raised where the next one begins,
    where it is finished, or at the end of the block: at the same point of all ranks' programs. An error that all ranks
    raise together, such as a loss that is not finite, leaves the block only after the save under way is on disk; any
    other error cancels it.
    """

    def __init__(self, trainer: RankTrainer) -> None:
        self._trainer = trainer
        self._tasks = Nursery()
        self._write_task: asyncio.Task[Path | UsageError] | None = None

    async def __aenter__(self) -> "CheckpointSaver":
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.finish()
            elif isinstance(error, AgreedError):
                with suppress(UsageError):  # the first error is the one to tell
                    await self.finish()
        except BaseException as failed:
            await self._tasks.__aexit__(type(failed), failed, failed.__traceback__)
            raise
        await self._tasks.__aexit__(kind, error, trace)

    async def save(self, step: int, target: SaveTarget) -> Path:
        """Finish the save before, and save the state after `step` steps; see `trainer_state.save`.

        Raises:
            CheckpointError: on every rank: this save or the one before failed; its files are removed.
        """
        await self.finish()
        return await save(self._trainer, step, target)

    async def start_save(self, step: int, target: SaveTarget) -> None:
        """Finish the save before, copy the state after `step` steps, and begin to write it.

        Raises:
            CheckpointError: on every rank: the save before failed; its files are removed.
        Cost: the time for one copy of the state into host memory, which is held until it is written.
        """
        await self.finish()
        state = await RankState.of(self._trainer, step)
        with self._trainer.context.executor.doing("the copy of the state for a save"):
            snapshot = await asyncio.to_thread(state.copy_to_host)
        self._write_task = self._tasks.create_task(
            _path_or_error(write(self._trainer.context.actor.transport, snapshot, target))
        )

    async def finish(self) -> None:
        """Wait until the last save that was begun is on disk.

        Raises:
            CheckpointError: on every rank: it failed; its files are removed.
        """
        if self._write_task is not None:
            outcome, self._write_task = await self._write_task, None
            if isinstance(outcome, UsageError):
                raise outcome


async def _path_or_error(writing: Awaitable[Path]) -> Path | UsageError:
    """A save's path, or its error as a value: raised by the task it would end the training of this rank at once."""
    try:
        return await writing
    except UsageError as error:
        return error
