"""The save of a node, by parameter name: the average of its layers after a round, and its own moments at the snapshot.

The nodes of the first cluster save, because a round has the same average for all; with it they save what stays in
their cluster, moments and the counters of norms. One cluster alone saves its own values instead. A later generation,
cut in any way, begins with what was saved. Imports torch.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pipelined.errors import UsageError
from pipelined.ravnest.stage.held_stage import HeldStage, HeldState
from pipelined.state.stages.saver import Saver
from pipelined.state.stages.store import CheckpointStore
from pipelined.state.stages.versions import SavedStage, Version
from pipelined.state.tensor_specs import TensorSpecs, specs_of
from transports import Block, Nursery


class ParameterStore(CheckpointStore, Protocol):
    """A store from which parameters are read by name, whatever the stages were."""

    def read(self, version: Version, name: str) -> Mapping[str, Block]:
        """The tensors of one parameter at a version; none: no stage that is saved here has it.

        Raises:
            StoreError: a tensor is damaged.
        """


class SaveReader(Protocol):
    """Reads what was saved."""

    def load(self, version: Version, specs: TensorSpecs) -> AsyncIterator[Mapping[str, Block]]:
        """The tensors of these specs at a version, whatever the stages were then; of one parameter after another.

        Raises:
            UsageError: they were saved with other dtypes or fields.
        """


@dataclass(frozen=True)
class SaveSettings(SaveReader):
    """Where a node saves, and how often.

    Args:
        every: rounds from one save to the next; 0: the last round alone, which is always saved.
        run: unique name of the run, so that stages of two runs are not taken for one model.
    """

    store: ParameterStore
    every: int
    run: str

    async def read(self, version: Version, name: str) -> Mapping[str, Block]:
        """See `ParameterStore.read`."""
        return await asyncio.to_thread(self.store.read, version, name)

    async def load(self, version: Version, specs: TensorSpecs) -> AsyncIterator[Mapping[str, Block]]:
        """See `SaveReader`. Raises StoreError: a tensor is damaged."""
        for name, part in group_by_parameter(specs).items():
            yield select_tensors(await self.read(version, name), part, version)

    def saver(self) -> Saver:
        return Saver(self.store, 1, True, lambda: None)


class StageSaver:
    """Saves one stage of one cluster.

    Args:
        tasks: the parent of writes; its end waits for them.
        saved_stage: its step is set for each save.
        steps: by round, from the first, the steps of the training completed before it; 0: steps are missing among the
            first ones, and the round is not saved.
        stage: this node's.
        is_writer: whether this node saves the stage; else another one does.
    """

    def __init__(
        self,
        tasks: Nursery,
        saving: SaveSettings,
        saved_stage: SavedStage,
        *,
        steps: Sequence[int],
        stage: HeldStage,
        is_writer: Callable[[], bool],
    ):
        self._tasks = tasks
        self._saving = saving
        self._saved_stage = saved_stage
        self._steps = steps
        self._stage = stage
        self._is_writer = is_writer
        self._saver = saving.saver()
        self._state = HeldState()

    async def copy_moments(self, round_: int, state: HeldState) -> None:
        """Copy the moments, if this round is saved; its snapshot is taken before the next update.

        First the last save must be written: a node holds one copy of its moments, and one average.

        Args:
            round_: from 1.
            state: a copy that there is already; empty: none.
        """
        await self._saver.wait_written()
        self._state = HeldState()  # of a round that was refused
        if self._is_writer() and self._is_due(round_):
            self._state = state or await self._stage.copy_state(averages=False)

    async def save(self, round_: int, average: torch.Tensor) -> None:
        """Save the average of a round, if `copy_moments` copied for it. A failure is an event.

        Args:
            round_: from 1.
            average: of the tensors without integers, flat, in their order; it does not change until it is written.
        """
        if self._state and self._is_due(round_):
            state, self._state = {**self._state, **self._stage.values_in(average)}, HeldState()
            await self._write(round_, state)

    async def save_own(self, round_: int) -> None:
        """Save the values of this stage, which is that of a cluster alone."""
        await self._saver.wait_written()
        if self._is_writer() and self._is_due(round_):
            await self._write(round_, await self._stage.copy_state())

    async def _write(self, round_: int, state: HeldState) -> None:
        """Begin to write."""

        async def copied_state() -> HeldState:
            return state

        await self._saver.save(self._tasks, self._saved_stage._replace(step=self._steps[round_ - 1]), copied_state)

    def _is_due(self, round_: int) -> bool:
        if round_ == len(self._steps):
            return True
        every = self._saving.every
        return every > 0 and round_ % every == 0 and self._steps[round_ - 1] > 0


def group_by_parameter(specs: TensorSpecs) -> dict[str, TensorSpecs]:
    """The specs of the tensors of each parameter."""
    specs_by_parameter = dict[str, dict[str, Any]]()
    for key, spec in specs.items():
        specs_by_parameter.setdefault(key.rpartition("/")[0], {})[key] = spec
    return dict(specs_by_parameter)


def select_tensors(state: Mapping[str, Block], specs: TensorSpecs, version: Version) -> Mapping[str, Block]:
    """The tensors of these specs out of a state. Raises UsageError: see `SaveReader.load`."""
    saved_specs = specs_of(state)
    for key, spec in specs.items():
        if saved_specs.get(key) != spec:
            fact = f"step {version.step} does not hold {key} (saved: {saved_specs.get(key)}, expected: {spec})"
            raise UsageError(f"{fact}; give the --dtype of the run that saved it")
    return {key: state[key] for key in specs}
