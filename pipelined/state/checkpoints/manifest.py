"""The manifest of a checkpoint: plain JSON, of which every field is checked when it is read.

This module does not import torch, so that a wrong checkpoint is refused before torch is loaded.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from pipelined.errors import MALFORMED, plain_name
from pipelined.process.whole_file import force
from pipelined.state.checkpoints.records import CheckpointError, ShardRecord, part_record, read_part, require_covered

FORMAT = 2
"""The newest format, which has pieces of parameters. A checkpoint without them is 1, which older releases read."""
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Meta:
    """The description of a checkpoint.

    Args:
        step: training steps done.
        identity: fields that must equal those of a model for the state to fit it.
        config: the resolved configuration of the run that saved it.
        scalars: small numbers and strings that the run restores, such as the seed and the optimizer's step.
    """

    step: int
    identity: Mapping[str, Any]
    config: Mapping[str, Any]
    scalars: Mapping[str, Any] = field(default_factory=dict)


def write_manifest(directory: Path, meta: Meta, shards: list[ShardRecord]) -> None:
    """Write the manifest of the shards that lie in a directory, and force both to disk.

    Raises:
        CheckpointError: two shards hold one element, pieces of a parameter do not cover it, or a shard is missing or
            has another size than was written.
    """
    require_covered(shards)
    _refuse_cut_short(directory, shards, "every rank must write to one directory that all of them share")
    version = FORMAT if any("parts" in shard for shard in shards) else 1
    (directory / MANIFEST).write_text(json.dumps({"format": version, **asdict(meta), "shards": shards}, indent=1))
    force(directory / MANIFEST)
    force(directory)


def read_manifest(directory: Path) -> tuple[Meta, list[ShardRecord]]:
    """Read the manifest of a checkpoint, and check that its shards exist with their full size.

    Raises:
        CheckpointError: the manifest is missing, damaged or of a newer format, or a shard is missing or of another
            size.
    """
    try:
        document = json.loads((directory / MANIFEST).read_bytes())
        if _whole(document, "format") > FORMAT:
            fact = f"{directory} was saved by a newer version (format: {document['format']}, known up to: {FORMAT})"
            raise CheckpointError(f"{fact}; update this program")
        meta = Meta(*(document[key] for key in ("step", "identity", "config", "scalars")))
        shards = [_shard(record) for record in document["shards"]]
        _check_types(meta, shards)
    except OSError as error:
        raise CheckpointError(
            f"{directory} has no readable {MANIFEST} ({error.strerror}); name a checkpoint"
        ) from error
    except CheckpointError:
        raise
    except MALFORMED as error:
        fact = f"{directory / MANIFEST} is damaged ({error!r})"
        raise CheckpointError(f"{fact}; resume from another checkpoint") from error
    _refuse_cut_short(directory, shards, "resume from another checkpoint")
    return meta, shards


def require_identity(path: Path, meta: Meta, identity: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another model.

    Raises:
        CheckpointError: names every field that differs, with both values.
    """
    model_identity = json.loads(json.dumps(dict(identity)))
    fields = [key for key in {**model_identity, **meta.identity} if model_identity.get(key) != meta.identity.get(key)]
    if fields:
        differences = "; ".join(
            f"{key}: {meta.identity.get(key)!r} saved, {model_identity.get(key)!r} asked" for key in fields
        )
        remedy = "ask for the saved model, or start anew in another directory"
        raise CheckpointError(f"{path} is of another model ({differences}); {remedy}")


def _shard(record: Any) -> ShardRecord:
    shard = ShardRecord(file=record["file"], bytes=record["bytes"], tensors=record["tensors"])
    if "parts" in record:
        shard["parts"] = {str(name): part_record(read_part(part)) for name, part in record["parts"].items()}
    return shard


def _check_types(meta: Meta, shards: list[ShardRecord]) -> None:
    """Raise an error of `MALFORMED` if the JSON is no checkpoint's manifest, or names a file outside its directory."""
    for name, value in asdict(meta).items():
        if type(value) is not (int if name == "step" else dict):
            raise TypeError(f"{name} is {value!r}")
    if meta.step < 0:
        raise TypeError(f"step is {meta.step}")
    for shard in shards:
        plain_name(shard["file"])
        _whole(shard, "bytes")
        tensors = shard["tensors"]
        if type(tensors) is not dict or not all(type(fields) is dict for fields in tensors.values()):
            raise TypeError(f"the tensors of {shard['file']} are no fields by name")
        for record in chain.from_iterable(fields.values() for fields in tensors.values()):
            _require_record(record)
    require_covered(shards)


def _require_record(record: Any) -> None:
    """Raise an error of `MALFORMED` if the JSON is no `TensorRecord`."""
    texts = [record["dtype"], record["sha256"]]
    sizes = record["shape"]
    is_shape = type(sizes) is list and all(type(size) is int and size >= 0 for size in sizes)
    if not is_shape or any(type(text) is not str for text in texts):
        raise TypeError(f"{record!r:.80} is no tensor")


def _whole(document: Mapping[str, Any], name: str) -> int:
    value = document[name]
    if type(value) is not int or value < 0:
        raise TypeError(f"{name} is {value!r:.80}")
    return value


def _refuse_cut_short(directory: Path, shards: list[ShardRecord], remedy: str) -> None:
    for shard in shards:
        path = directory / shard["file"]
        size = path.stat().st_size if path.is_file() else None
        if size is None:
            raise CheckpointError(f"{path} is missing (bytes written: {shard['bytes']}); {remedy}")
        if size != shard["bytes"]:
            fault = "cut short" if size < shard["bytes"] else "longer than it was written"
            raise CheckpointError(f"{path} is {fault} (bytes: {size}, written: {shard['bytes']}); {remedy}")
