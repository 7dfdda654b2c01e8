"""The stores of saved stages: the interface, and directories on disk.

    stage-00/step-00000100/     shard-00-of-01.safetensors, manifest.json
    stage-01/step-00000100/     …

A swarm can roll back to a step only if every stage saved it in one *lineage*: the name of the sequence of steps that
led there. After an earlier rollback there may be two lineages of one step. State is keyed by parameter name, so a swarm
may be cut into other stages than the one that saved. All peers may share a directory, or each machine has its own; then
peers list what they have saved in the swarm's directory. Functions block. torch is imported when tensors are read or
written.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import Checkpoint, open_checkpoint
from pipelined.state.checkpoints.manifest import Meta
from pipelined.state.checkpoints.names import saves_in
from pipelined.state.checkpoints.records import CheckpointError
from pipelined.state.stages.chunks import describe
from pipelined.state.stages.stage_lock import stage_lock
from pipelined.state.stages.versions import SavedStage, Version
from pipelined.state.tensor_specs import TensorSpecs
from transports import Block


class CheckpointStore(Protocol):
    """Saves and loads stages."""

    def saved_stages(self) -> Sequence[SavedStage]:
        """All saved stages.

        Raises:
            OSError: they cannot be listed.
        """

    def save(self, save: SavedStage, state: Mapping[str, Any], gone_process: str = "") -> str:
        """Save a state, which the caller must not change meanwhile.

        Args:
            state: by NAME/FIELD.
            gone_process: a process that is not waited for any more if it is saving this stage: its save fails.
        Returns: "": the state is saved now; else the process that is saving this stage, and nothing was written.
        Raises:
            StoreError: the state was not saved; earlier saves are unchanged.
        """

    def load(self, save: SavedStage, specs: TensorSpecs) -> Mapping[str, Block]:
        """The tensors of these specs at this step of this lineage, from whichever stages saved them.

        Raises:
            StoreError: a tensor is missing. DamagedSave: it is damaged.
        """


class StoreError(Exception):
    """A save or a load failed; nothing was saved or loaded."""


class DamagedSave(StoreError, CheckpointError):
    """A saved stage has other bytes than its digests say, or cannot be read.

    Args:
        saved_stage: the stage.
    """

    def __init__(self, why: str, saved_stage: SavedStage):
        super().__init__(why)
        self.saved_stage = saved_stage


@dataclass(frozen=True)
class DiskStore:
    """A store in a directory, of one machine or shared by several.

    Args:
        identity: values that must be equal for a state to fit the model.
        keep: number of steps kept of each stage.
        text, optimizer: digest of the training text, and the optimizer's name; recorded with each save if not "".
        name: of this process, for others that wait for its save.
    """

    directory: Path
    identity: Mapping[str, Any]
    keep: int = 3
    text: str = ""
    optimizer: str = ""
    name: str = ""

    def saved_stages(self) -> Sequence[SavedStage]:
        """See `CheckpointStore`."""
        return saved_stages(self.directory, self.identity)

    def save(self, save: SavedStage, state: Mapping[str, Any], gone_process: str = "") -> str:
        """See `CheckpointStore`. Atomic; where the file system has no locks, several processes may save at once.

        Cost: three passes over the bytes; if this very state is saved already, and undamaged, one reads it instead.
        """
        stage_directory = _stage_directory(self.directory, save.stage)
        try:
            with stage_lock(stage_directory, self.name, gone_process) as writer:
                if not writer:
                    if writer is not None:
                        checkpoint.clean(stage_directory)
                    self._write(stage_directory, save, state)
        except (CheckpointError, OSError) as error:
            raise StoreError(str(error)) from error
        return writer or ""

    def load(self, save: SavedStage, specs: TensorSpecs) -> Mapping[str, Block]:
        """See `CheckpointStore`."""
        try:
            return load(self.directory, save, specs, self.identity)
        except DamagedSave:
            raise
        except (CheckpointError, OSError) as error:
            raise StoreError(str(error)) from error

    def read(self, version: Version, name: str) -> Mapping[str, Block]:
        """The tensors of one parameter at a version; none: no stage that is saved here has it.

        Raises:
            DamagedSave: a tensor is damaged. StoreError: the directory cannot be read.
        """
        try:
            return _tensors(saved_shards(self.directory, version), {name}, self.identity)
        except DamagedSave:
            raise
        except (CheckpointError, OSError) as error:
            raise StoreError(str(error)) from error

    def _write(self, stage_directory: Path, save: SavedStage, state: Mapping[str, Any]) -> None:
        """Write one stage, unless it is there; remove all parts of it if that fails."""
        root = describe(state).root.hex()
        existing = saves_in(stage_directory).get(save.step)
        if existing is not None and _entry(existing) == (save, root) and open_checkpoint(existing).is_undamaged():
            return
        tensors: dict[str, dict[str, Any]] = {}
        for key, value in state.items():
            name, _, field = key.rpartition("/")
            tensors.setdefault(name, {})[field] = Block.of(value).torch()
        scalars = {"stage": save.stage, "stages": save.stages, "lineage": save.lineage, "root": root}
        notes = {"text": self.text, **({"optimizer": self.optimizer} if self.optimizer else {})}
        token = secrets.token_hex(4)
        try:
            record = checkpoint.write_shard(stage_directory, save.step, 0, 1, tensors, token=token)
            checkpoint.commit(
                stage_directory, Meta(save.step, self.identity, notes, scalars), [record], self.keep, token
            )
        except CheckpointError:
            checkpoint.discard(stage_directory, save.step, token)
            raise


def saved_stages(directory: str | Path, identity: Mapping[str, Any] | None = None) -> list[SavedStage]:
    """All complete saved stages in a directory, except damaged ones and those of another model."""
    stage_directories = sorted(Path(directory).glob("stage-*"))
    entries = [
        _entry(path, identity) for stage_directory in stage_directories for path in saves_in(stage_directory).values()
    ]
    return [entry[0] for entry in entries if entry]


def note_of(directory: str | Path, save: SavedStage, name: str) -> str:
    """What a saved step was trained with: "text", a digest, or "optimizer"; "" if no stage of it recorded that."""
    notes = (shard.meta.config.get(name) for shard in saved_shards(directory, save.version))
    return next((note for note in notes if isinstance(note, str) and note), "")


def fields_of(directory: str | Path, save: SavedStage) -> set[str]:
    """The fields that a saved step has, of any parameter: value, and what its optimizer keeps."""
    records = (record for stage_save in saved_shards(directory, save.version) for record in stage_save.shards)
    return {field for record in records for fields in record["tensors"].values() for field in fields}


def load(directory: str | Path, save: SavedStage, specs: TensorSpecs, identity: Mapping[str, Any]) -> dict[str, Block]:
    """Read the tensors of these specs at this step and lineage, from whichever stages saved them.

    Raises:
        CheckpointError: a tensor is missing, has another dtype or shape, or is from another model. DamagedSave: it is
            damaged.
    Cost: reads the bytes of these tensors only.
    """
    state = _tensors(saved_shards(directory, save.version), {key.rpartition("/")[0] for key in specs}, identity)
    for key, spec in specs.items():
        saved_spec = (state[key].dtype, state[key].shape) if key in state else "nothing"
        if saved_spec != spec:
            fact = f"step {save.step} in {directory} does not hold {key} (saved: {saved_spec}, expected: {spec})"
            raise CheckpointError(f"{fact}; start from a swarm of this model")
    return {key: state[key] for key in specs}


def _tensors(shards: Iterable[Checkpoint], names: Set[str], identity: Mapping[str, Any]) -> dict[str, Block]:
    """All fields of these parameters, as far as the shards have them. Raises as `load`."""
    tensors: dict[str, Mapping[str, Any]] = {}
    for shard in shards:
        shard_names = [name for name in shard.require(identity).names if name in names and name not in tensors]
        try:
            tensors |= shard.load(shard_names)
        except CheckpointError as error:
            raise DamagedSave(str(error), _saved_stage(shard)) from error
    return {f"{name}/{field}": Block.of(value) for name, fs in tensors.items() for field, value in fs.items()}


def saved_shards(directory: str | Path, version: Version) -> Iterator[Checkpoint]:
    """The saves of a version in a directory, one of each stage."""
    for stage_directory in sorted(Path(directory).glob("stage-*")):
        path = saves_in(stage_directory).get(version.step)
        if path is not None and (entry := _entry(path)) and entry[0].version == version:
            yield open_checkpoint(path)


def _stage_directory(directory: str | Path, stage: int) -> Path:
    return Path(directory) / f"stage-{stage:02}"


def _entry(path: Path, identity: Mapping[str, Any] | None = None) -> tuple[SavedStage, str] | None:
    """The saved stage at a path, and its root; None if it is incomplete or does not record them."""
    try:
        save = open_checkpoint(path)
        if identity is not None:
            save.require(identity)
        return _saved_stage(save), save.meta.scalars["root"]
    except (CheckpointError, KeyError):
        return None


def _saved_stage(save: Checkpoint) -> SavedStage:
    scalars = save.meta.scalars
    return SavedStage(save.meta.step, scalars["stage"], scalars["stages"], scalars["lineage"])
