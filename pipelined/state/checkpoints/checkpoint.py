"""Checkpoints: saving, finding and loading the state of a run. State is keyed by parameter name, never by stage number
or rank, so any arrangement can load what another one saved, also one that splits parameters over other ranks.

A save has three parts. Rank 0 removes the files of interrupted saves (`clean`, if its run has claimed the directory).
Every rank writes the parameters it owns (`write_shard`). When all ranks have, rank 0 names the checkpoint (`commit`).
The caller sends the records of the shards to rank 0, and runs these blocking functions outside its event loop. torch is
imported only when tensors are read or written.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipelined.process.whole_file import force
from pipelined.sharding.shards import TensorPart
from pipelined.state.checkpoints.manifest import MANIFEST, Meta, read_manifest, require_identity, write_manifest
from pipelined.state.checkpoints.names import is_checkpoint, prune, publish, remove_unfinished, saves_in, unfinished
from pipelined.state.checkpoints.records import (
    Assembly,
    CheckpointError,
    ShardRecord,
    part_record,
    parts_of,
    record_of,
    require_saved,
    solid,
    whole_part,
)

if TYPE_CHECKING:
    import torch

State = Mapping[str, Mapping[str, "torch.Tensor"]]
"""Parameter name to its fields: "value", and the fields of the optimizer, such as "exp_avg"."""

WRITTEN = "records-sha256"
"""The key in the header of a shard for the hash of the record that its writer reported."""


def clean(directory: str | Path) -> None:
    """Remove the files of crashed and failed saves, which would fill the disk: on rank 0, before any rank writes.

    Call it only if no other run can be saving, as after `claim`: it would remove that run's unfinished save, too.

    Raises:
        CheckpointError: a file cannot be removed.
    """
    try:
        remove_unfinished(Path(directory))
    except OSError as error:
        raise CheckpointError(f"cannot remove what an earlier save left ({error}); remove it by hand") from error


def write_shard(
    directory: str | Path,
    step: int,
    rank: int,
    world_size: int,
    owned: State,
    *,
    token: str = "",
    parts: Mapping[str, TensorPart] | None = None,
) -> ShardRecord:
    """Write the state that this rank owns into the unfinished checkpoint, and force it to disk.

    Args:
        owned: tensors of any dtype, shape and device; they may be views of one buffer if they do not overlap; may be
            empty. The tensors must not change during the call.
        token: the token of this save, the same on all ranks and different for each save.
        parts: what the rank holds of those parameters that it does not hold whole.
    Returns: the record of this shard, plain data for `commit`.
    Raises:
        CheckpointError: the shard could not be written; its file is removed. Other files are unchanged.
    Cost: one pass over the bytes for their hashes, one to write them; extra memory only for tensors that are not
        contiguous or not on the CPU.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    width = max(2, len(str(world_size)))
    checkpoint_directory = unfinished(Path(directory), step, token)
    path = checkpoint_directory / f"shard-{rank:0{width}}-of-{world_size:0{width}}.safetensors"
    state = {name: {field: solid(tensor) for field, tensor in fields.items()} for name, fields in owned.items()}
    records = {name: {field: record_of(tensor) for field, tensor in fields.items()} for name, fields in state.items()}
    try:
        checkpoint_directory.mkdir(parents=True, exist_ok=True)
        tensors = {_key(name, field): tensor for name, fs in state.items() for field, tensor in fs.items()}
        save_file(tensors, path, {WRITTEN: _hash(records)})
        force(path)
        force(checkpoint_directory)
        shard = ShardRecord(file=path.name, bytes=path.stat().st_size, tensors=records)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):
            path.unlink()
        raise CheckpointError(f"rank {rank} cannot write {path} ({error}); free or choose another place") from error
    if parts:
        shard["parts"] = {name: part_record(part) for name, part in parts.items()}
    return shard


def commit(directory: str | Path, meta: Meta, shards: Iterable[ShardRecord], keep: int, token: str = "") -> Path:
    """Give the checkpoint its name: on rank 0, after `write_shard` has returned on every rank.

    Everything is on disk before the name appears. Afterwards all but the newest `keep` checkpoints are deleted, never
    this one. If the process is killed at any point of this function, the last good checkpoint stays usable.

    Args:
        token: the token that the ranks passed to `write_shard`.
    Raises:
        CheckpointError: a shard is missing or differs from its record, two ranks wrote one parameter, or the disk
            failed. The earlier checkpoints are unchanged.
    Returns: the checkpoint's path.
    """
    directory, shards = Path(directory), list(shards)
    checkpoint_directory = unfinished(directory, meta.step, token)
    try:
        for path in set(checkpoint_directory.iterdir()) - {checkpoint_directory / shard["file"] for shard in shards}:
            path.unlink()
        write_manifest(checkpoint_directory, meta, shards)
        _refuse_another_writer(checkpoint_directory, shards)
        path = publish(directory, meta.step, token)
    except OSError as error:
        raise CheckpointError(f"cannot save step {meta.step} ({error}); free or choose another place") from error
    prune(directory, meta.step, keep, token)
    return path


def require_keep(keep: int) -> None:
    """Refuse to keep fewer checkpoints than one: the newest is always kept."""
    if keep < 1:
        raise CheckpointError(f"keep must be at least 1 (it is {keep}); give the number of checkpoints to keep")


def discard(directory: str | Path, step: int, token: str = "") -> None:
    """Remove the files of a failed save: on rank 0, after every rank has stopped writing."""
    shutil.rmtree(unfinished(Path(directory), step, token), ignore_errors=True)


def latest(directory: str | Path) -> Path | None:
    """The checkpoint of the highest step in a directory, or None if there is no checkpoint."""
    return max(saves_in(Path(directory)).items(), default=(0, None))[1]


def require_continued(
    directory: str | Path, identity: Mapping[str, Any], origin: str | Path | None, remedy: str
) -> None:
    """Refuse to save into a directory that holds checkpoints of another model, or of a run that is not continued.

    Args:
        origin: the checkpoint, or the directory of checkpoints, that this run continues from; None: it begins anew.
        remedy: how to continue, for the message.
    Raises:
        CheckpointError: nothing is written.
    """
    newest = latest(directory)
    if newest is None:
        return
    open_checkpoint(newest).require(identity)
    if origin is None or open_checkpoint(origin).path.resolve().parent != Path(directory).resolve():
        run = "an earlier run" if origin is None else f"another run than {origin}, which is continued"
        fact = f"{directory} holds checkpoints of {run} (the latest: {newest.name})"
        raise CheckpointError(f"{fact}; {remedy}")


def open_checkpoint(path: str | Path) -> "Checkpoint":
    """Open a checkpoint, or the latest in a directory of checkpoints; checks that all its shards have their full size.

    Raises:
        CheckpointError: there is no checkpoint, or it is damaged, truncated, or of a newer format.
    """
    path = Path(path)
    checkpoint_directory = path if is_checkpoint(path) or (path / MANIFEST).exists() else latest(path)
    if checkpoint_directory is None or not checkpoint_directory.is_dir():
        parent = path.parent if checkpoint_directory else path
        names = ", ".join(checkpoint.name for checkpoint in saves_in(parent).values()) or "none"
        raise CheckpointError(f"no checkpoint {path} (there: {names}); name one, or the directory of a saved run")
    meta, shards = read_manifest(checkpoint_directory)
    return Checkpoint(checkpoint_directory, meta, shards)


@dataclass(frozen=True)
class Checkpoint:
    """A saved state; tensors are read only when `load` is called.

    Args:
        path: the directory of the checkpoint.
        meta: its step, identity, configuration and scalars.
        shards: the records of its files.
    """

    path: Path
    meta: Meta
    shards: Sequence[ShardRecord]

    @cached_property
    def shards_by_name(self) -> Mapping[str, Sequence[ShardRecord]]:
        """The shards that hold each parameter, or pieces of it, by name."""
        shards = dict[str, list[ShardRecord]]()
        for shard in self.shards:
            for name in shard["tensors"]:
                shards.setdefault(name, []).append(shard)
        return shards

    @property
    def names(self) -> list[str]:
        return list(self.shards_by_name)

    def require(self, identity: Mapping[str, Any]) -> "Checkpoint":
        """Return this checkpoint if it was saved from this model.

        Raises:
            CheckpointError: another model; names every field that differs, with both values.
        """
        require_identity(self.path, self.meta, identity)
        return self

    def is_undamaged(self) -> bool:
        """Read every tensor, one after another, and compare it with its hash."""
        try:
            for shard in self.shards:
                fields = [(name, field) for name, fields in shard["tensors"].items() for field in fields]
                for _ in self._read(shard, fields):
                    pass
        except CheckpointError:
            return False
        return True

    def load(
        self, names: Iterable[str], parts: Mapping[str, TensorPart] | None = None, only: str | None = None
    ) -> "dict[str, dict[str, torch.Tensor]]":
        """Read these parameters with their fields into CPU memory, and check each tensor against its hash.

        Args:
            parts: the part to read of each parameter that is not read whole.
            only: the field to read; None: all of them.
        Raises:
            CheckpointError: a name is not in the checkpoint, or bytes differ from those saved.
        Cost: reads only the tensors that have something of these parameters, and opens each shard that holds one once;
            memory of one saved tensor at a time beside what is returned.
        """
        assemblies = {name: Assembly(name, (parts or {}).get(name)) for name in names}
        if missing_names := [name for name in assemblies if name not in self.shards_by_name]:
            counts = f"missing: {len(missing_names)}, saved: {len(self.shards_by_name)}"
            raise CheckpointError(f"{self.path} lacks {missing_names[0]} ({counts}); it was saved by a run without it")
        for shard in self.shards:
            records = shard["tensors"]
            parts_of_shard = parts_of(shard)
            held_parts = {name: parts_of_shard.get(name) for name in records if name in assemblies}
            needed_names = [name for name, part in held_parts.items() if assemblies[name].needs(part)]
            fields = [(name, field) for name in needed_names for field in records[name] if only in (None, field)]
            for name, field, tensor in self._read(shard, fields) if fields else ():
                assemblies[name].add(field, tensor, held_parts[name] or whole_part(records[name]))
                del tensor  # before the next one is read
        return {name: assembly.fields for name, assembly in assemblies.items()}

    def _read(self, shard: ShardRecord, fields: list[tuple[str, str]]) -> "Iterator[tuple[str, str, torch.Tensor]]":
        from safetensors import SafetensorError, safe_open

        path = self.path / shard["file"]
        try:
            with safe_open(path, framework="pt") as file:
                for name, field in fields:
                    tensor = file.get_tensor(_key(name, field))
                    require_saved(path, name, field, tensor, shard["tensors"][name][field])
                    yield name, field, tensor
                    del tensor
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{path} is damaged ({error}); resume from another checkpoint") from error


def _refuse_another_writer(checkpoint_directory: Path, shards: Iterable[ShardRecord]) -> None:
    """Raise CheckpointError if the header of a shard has other hashes than its rank reported. Reads only headers."""
    from safetensors import SafetensorError, safe_open

    for shard in shards:
        path = checkpoint_directory / shard["file"]
        try:
            with safe_open(path, framework="numpy") as file:
                header_hash = (file.metadata() or {}).get(WRITTEN, "none")
        except SafetensorError as error:
            header_hash = str(error)
        if header_hash != (written_hash := _hash(shard["tensors"])):
            hashes = f"hash of its records: {header_hash[:16]}, written: {written_hash[:16]}"
            fact = f"{path} was written over by another run ({hashes})"
            raise CheckpointError(f"{fact}; give every run its own directory")


def _hash(records: Mapping[str, Any]) -> str:
    """The hash of the tensor records of one shard, which include the hashes of the tensors."""
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


def _key(name: str, field: str) -> str:
    return f"{name}/{field}"
