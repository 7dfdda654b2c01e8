"""The pieces of a checkpoint's tensors: how the manifest has them, and how a tensor is put together from those saved.

A rank of a team saves what it holds of a parameter. The pieces of a parameter cover it, each element once, in any
number of shards; a run with another number of ranks a worker takes what it needs of each. torch is not imported here.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from pipelined.errors import UsageError
from pipelined.sharding.shards import TensorPart, places_in, put, take

if TYPE_CHECKING:
    import torch


class CheckpointError(UsageError):
    """A checkpoint that cannot be used or written; the message gives its path, the error and the remedy."""


class TensorRecord(TypedDict):
    """One tensor of a shard; sha256 is of its bytes in C order."""

    shape: list[int]
    dtype: str
    sha256: str


class PartRecord(TypedDict):
    """Which part of a parameter a shard has: the parameter's shape, and for each dimension ranges [low, high)."""

    whole: list[int]
    indices: list[list[list[int]]]


class ShardRecord(TypedDict):
    """One shard file, as plain data for the wire and JSON: its name, its size, its tensors by name and field.

    `parts` has those parameters of which the shard has a piece; without it all are whole.
    """

    file: str
    bytes: int
    tensors: dict[str, dict[str, TensorRecord]]
    parts: NotRequired[dict[str, PartRecord]]


def solid(tensor: "torch.Tensor") -> "torch.Tensor":
    """A tensor as it is written: contiguous, on the host, without a history."""
    return tensor.detach().cpu().contiguous()


def record_of(tensor: "torch.Tensor") -> TensorRecord:
    """The record of a tensor as it is written."""
    import torch

    digest = hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().data).hexdigest()
    return TensorRecord(shape=list(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."), sha256=digest)


def require_saved(path: Path, name: str, field: str, tensor: "torch.Tensor", record: TensorRecord) -> None:
    """Refuse a field of a parameter if its bytes are not those that were saved.

    Raises:
        CheckpointError: names the parameter and the field.
    """
    if record_of(tensor) != record:
        fact = f"{path} is damaged ({name}, {field}: not the bytes that were saved)"
        raise CheckpointError(f"{fact}; resume from another checkpoint")


def part_record(part: TensorPart) -> PartRecord:
    """A part as plain data."""
    return PartRecord(whole=list(part.whole), indices=[[list(span) for span in ranges] for ranges in part.indices])


def read_part(record: Any) -> TensorPart:
    """A part from plain data.

    Raises:
        TypeError, KeyError: the data describe no part.
    """
    shape = tuple(record["whole"])
    indices = tuple(tuple(map(tuple, ranges)) for ranges in record["indices"])
    if len(shape) != len(indices):
        raise TypeError(f"indices of {len(indices)} dimensions of {len(shape)}")
    for size, ranges in zip(shape, indices, strict=True):
        ends = [0, *(end for span in ranges for end in span), size]
        if not all(type(end) is int for end in ends) or ends != sorted(ends):
            raise TypeError(f"ranges {ranges} of a length of {size}")
        if any(len(span) != 2 or span[0] == span[1] for span in ranges):
            raise TypeError(f"ranges {ranges}, one of which is empty")
    return TensorPart(shape, indices)


def parts_of(shard: ShardRecord) -> dict[str, TensorPart]:
    """The parameters of which a shard has a piece, and the pieces."""
    return {name: read_part(record) for name, record in shard.get("parts", {}).items()}


def whole_part(records: Mapping[str, TensorRecord]) -> TensorPart | None:
    """All of a parameter, by the records of a shard that has it whole; None: it has no value."""
    return TensorPart.everything(records["value"]["shape"]) if "value" in records else None


def require_covered(shards: Iterable[ShardRecord]) -> None:
    """Refuse shards of which two hold one element of a parameter, or none does.

    Raises:
        CheckpointError: names the parameter.
    """
    pieces_by_name: dict[str, list[tuple[str, TensorPart | None]]] = {}
    for shard in shards:
        parts = parts_of(shard)
        for name in shard["tensors"]:
            pieces_by_name.setdefault(name, []).append((shard["file"], parts.get(name)))
    for name, pieces in pieces_by_name.items():
        if len(pieces) > 1 or pieces[0][1] is not None:
            _require_covered(name, pieces)


def _require_covered(name: str, pieces: Sequence[tuple[str, TensorPart | None]]) -> None:
    parts = [(file, part) for file, part in pieces if part is not None]
    for (file, part), (second_file, second_part) in combinations(pieces, 2):
        if part is None or second_part is None or part.overlap(second_part):
            fact = f"parameter {name} was written twice ({file} and {second_file})"
            raise CheckpointError(f"{fact}; give each parameter one owner")
    shapes = {part.whole for _, part in parts}
    elements = sum(prod(part.shape) for _, part in parts)
    if len(shapes) > 1 or elements != prod(parts[0][1].whole):
        counts = f"shapes: {', '.join(map(str, sorted(shapes)))}; elements there: {elements}"
        raise CheckpointError(f"pieces of parameter {name} do not make one tensor ({counts}); save again")


class Assembly:
    """The fields of one parameter, or of a piece of it, as they are put together from the shards.

    Args:
        name: of the parameter.
        part: what is read of it; None: all of it.
    """

    def __init__(self, name: str, part: TensorPart | None):
        self.name, self.part = name, part
        self.fields: dict[str, Any] = {}

    def needs(self, held_part: TensorPart | None) -> bool:
        """Whether a shard that holds this part of the parameter (None: all of it) has anything that is wanted.

        For an empty piece, the first shard supplies dtypes and fields.
        """
        if held_part is None or self.part is None:
            return True
        return held_part.overlap(self.part) is not None or not (self.fields or prod(self.part.shape))

    def add(self, field: str, tensor: "torch.Tensor", held_part: TensorPart | None) -> None:
        """Take what is wanted of a field of one shard; one without the shape of the shard's part is taken as it is.

        Args:
            held_part: which part of the parameter the shard has; None: it does not say.
        Raises:
            CheckpointError: the parameter has another shape than is wanted.
        """
        if held_part is None:
            self.fields.setdefault(field, tensor)
            return
        part = self.part or TensorPart.everything(held_part.whole)
        if held_part.whole != part.whole:
            fact = f"{self.name} is saved in another shape (saved: {held_part.whole}, model: {part.whole})"
            raise CheckpointError(f"{fact}; resume with the model that was saved, or start anew in another directory")
        if held_part == part or tuple(tensor.shape) != held_part.shape:
            self.fields.setdefault(field, tensor)
            return
        target = self.fields.setdefault(field, tensor.new_empty(part.shape))
        if (overlap := held_part.overlap(part)) is not None:
            put(target, places_in(part.indices, overlap), take(tensor, places_in(held_part.indices, overlap)))
