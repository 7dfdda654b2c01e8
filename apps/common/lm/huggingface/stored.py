"""The tensors of a Hugging Face directory: safetensors in one file or many. Headers are read; tensors when requested.

Torch is imported only where tensors move.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from pipelined.errors import UsageError

if TYPE_CHECKING:
    import torch

NUMBER = (int, float)
"""The types of a number in JSON."""
REMEDY = "give a complete directory of the model"


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies, and its shape."""

    file: Path
    key: str
    shape: tuple[int, ...]

    def read(self) -> "torch.Tensor":
        with _open(self.file, "pt") as tensors:
            return tensors.get_tensor(self.key)


def find_tensors(directory: str | Path, name_of: Callable[[str], str] = str) -> dict[str, StoredTensor]:
    """Every tensor of a directory.

    Args:
        name_of: our name of a tensor, from the file's.
    Raises:
        UsageError: a file is missing or broken.
    """
    stored_tensors = {}
    for file in _weight_files(Path(directory)):
        with _open(file, "np") as tensors:
            for key in tensors.keys():
                stored_tensors[name_of(key)] = StoredTensor(file, key, tuple(tensors.get_slice(key).get_shape()))
    return stored_tensors


def each_stored_tensor(
    directory: str | Path, stored_tensors: Mapping[str, StoredTensor], names: Iterable[str]
) -> "Iterator[tuple[str, torch.Tensor]]":
    """The tensors of these names, one after another, in the dtype they are stored in.

    Raises:
        UsageError: one is missing, or a file is broken.
    """
    for name in names:
        if name not in stored_tensors:
            raise UsageError(f"{directory} holds no tensor {name} ({len(stored_tensors)} others); {REMEDY}")
        yield name, stored_tensors[name].read()


def check_shapes(
    stored_tensors: Mapping[str, StoredTensor], shapes: Mapping[str, tuple[int, ...]], directory: str | Path
) -> None:
    """Refuse a directory in which one of these tensors is missing, or has another shape."""
    for name, shape in shapes.items():
        if name not in stored_tensors:
            raise UsageError(f"{directory} holds no tensor {name}; {REMEDY}")
        if stored_tensors[name].shape != shape:
            fact = (
                f"{directory} is at odds with its config.json ({name}: {stored_tensors[name].shape}, expected: {shape})"
            )
            raise UsageError(f"{fact}; {REMEDY}")


def read_json(file: Path) -> dict[str, Any]:
    """An object of a JSON file.

    Raises:
        UsageError: it cannot be read, or is something else.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file} ({error}); {REMEDY}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{file} is no JSON object (it is a {type(content).__name__}); {REMEDY}")
    return content


def check_config_json(
    config_json: Mapping[str, Any], name: str, kinds: Sequence[str], fixed: Mapping[str, Any], directory: str | Path
) -> None:
    """Refuse a config.json of another architecture, or of a variant that is not computed here.

    Args:
        name: the architecture's name in messages.
        kinds: its `model_type`s.
        fixed: values that other keys must have, and have where the file is silent.
    """
    kind = config_json.get("model_type", "none given")
    if kind not in kinds:
        known_kinds = " or ".join(kinds)
        fact = f"{directory} holds another architecture (model_type: {kind}, needed: {known_kinds})"
        raise UsageError(f"{fact}; give a {name} directory")
    for key, value in fixed.items():
        setting = config_json.get(key, value)
        if setting != value:
            fact = f"{directory} is not {name} as published ({key}: {setting}, needed: {value})"
            raise UsageError(f"{fact}; give a plain {name}")


def check_value_types(
    config_json: Mapping[str, Any], types_by_key: Mapping[str, Sequence[type]], directory: str | Path
) -> None:
    """Refuse a config.json in which one of these keys has a value of another type; a key may be missing."""
    mistyped = [
        f"{key}: {config_json[key]!r}"
        for key, types in types_by_key.items()
        if key in config_json and type(config_json[key]) not in types
    ]
    if mistyped:
        raise UsageError(f"{directory}/config.json has values of another type ({', '.join(mistyped)}); {REMEDY}")


def read_numbers(config_json: Mapping[str, Any], names: Mapping[str, str], directory: str | Path) -> dict[str, int]:
    """Whole numbers of a config.json.

    Args:
        names: its key for each of ours.
    Raises:
        UsageError: one is missing.
    """
    missing = [name for name in names.values() if not isinstance(config_json.get(name), int)]
    if missing:
        raise UsageError(f"{directory}/config.json lacks {', '.join(missing)}; {REMEDY}")
    return {ours: config_json[theirs] for ours, theirs in names.items()}


def digest_of_weights(directory: str | Path) -> str:
    """The blake2b of the files of weights, as hexadecimal digits. Cost: reads them once."""
    hasher = hashlib.blake2b(digest_size=16)
    for path in _weight_files(Path(directory)):
        with path.open("rb") as file:
            hasher.update(hashlib.file_digest(file, "blake2b").digest())
    return hasher.hexdigest()


def _open(file: Path, framework: str) -> Any:
    try:
        return safe_open(file, framework)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"cannot read the weights {file} ({error}); {REMEDY}") from error


def _weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if (path / "model.safetensors").exists() or not index.exists():
        return [path / "model.safetensors"]
    weight_map = read_json(index).get("weight_map", {})
    return [path / file for file in sorted(set(weight_map.values()))]
