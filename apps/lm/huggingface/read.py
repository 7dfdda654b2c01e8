"""GPT-2 directories as Hugging Face keeps them: config.json, safetensors in one file or many, and a tokenizer.

This module reads them; `apps.lm.huggingface.write` writes them. The headers are checked before a tensor is loaded, and
torch is imported only where tensors move.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from apps.common.paths import GPT2_TYPE
from apps.lm.models.gpt2_presets import ModelConfig, shapes
from pipelined.errors import UsageError

if TYPE_CHECKING:
    import torch

EMBEDDING, HEAD = "transformer.wte.weight", "lm_head.weight"

FIXED: Mapping[str, Any] = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
"""What GPT-2 as published leaves no choice about, and what Hugging Face takes where a config.json is silent."""


def read_config(directory: str | Path) -> ModelConfig:
    """Read the sizes of a GPT-2, and check that its tensors have them. Needs no torch unless there is an own head.

    Raises:
        UsageError: it is another architecture, or files are missing, broken or at odds.
    """
    about = _read_json(Path(directory, "config.json"))
    _check_architecture(about, directory)
    sizes = {
        "layers": "n_layer",
        "d_model": "n_embd",
        "heads": "n_head",
        "vocab": "vocab_size",
        "positions": "n_positions",
    }
    missing = [name for name in sizes.values() if not isinstance(about.get(name), int)]
    if missing:
        raise UsageError(f"{directory}/config.json lacks {', '.join(missing)}; give --init a complete GPT-2 directory")
    stored = _find_tensors(directory)
    tied = about.get("tie_word_embeddings", True) and not _has_own_head(stored)
    numbers = {ours: about[theirs] for ours, theirs in sizes.items()}
    config = ModelConfig(**numbers, dropout=_dropout(about), tied=tied, deviation=about.get("initializer_range", 0.02))
    _check_shapes(stored, config, directory)
    return config


def read_tensors(directory: str | Path, names: Iterable[str]) -> "dict[str, torch.Tensor]":
    """Read the tensors of these names, and nothing else, in the dtype they are stored in.

    Raises:
        UsageError: one is missing, or a file is broken.
    """
    return dict(each_tensor(directory, names))


def each_tensor(directory: str | Path, names: Iterable[str]) -> "Iterator[tuple[str, torch.Tensor]]":
    """As `read_tensors`, one tensor after another, so that they need not fit into memory together."""
    stored = _find_tensors(directory)
    for name in names:
        if name not in stored:
            raise UsageError(
                f"{directory} holds no tensor {name} ({len(stored)} others); give a complete GPT-2 directory"
            )
        yield name, stored[name].read()


def digest_of_weights(directory: str | Path) -> str:
    """The blake2b of the files of weights, as hexadecimal digits. Cost: reads them once."""
    hasher = hashlib.blake2b(digest_size=16)
    for path in _weight_files(Path(directory)):
        with path.open("rb") as file:
            hasher.update(hashlib.file_digest(file, "blake2b").digest())
    return hasher.hexdigest()


@dataclass(frozen=True)
class _Stored:
    """Where a tensor lies, and its shape."""

    file: Path
    key: str
    shape: tuple[int, ...]

    def read(self) -> "torch.Tensor":
        with _open(self.file, "pt") as tensors:
            return tensors.get_tensor(self.key)


def _open(file: Path, framework: str) -> Any:
    try:
        return safe_open(file, framework)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"cannot read the weights {file} ({error}); give a complete GPT-2 directory") from error


def _find_tensors(directory: str | Path) -> dict[str, _Stored]:
    """Every tensor by our name, whether or not the file's names begin with "transformer."."""
    stored = {}
    for file in _weight_files(Path(directory)):
        with _open(file, "np") as tensors:
            for key in tensors.keys():
                stored[_full(key)] = _Stored(file, key, tuple(tensors.get_slice(key).get_shape()))
    return stored


def _weight_files(path: Path) -> list[Path]:
    index = path / "model.safetensors.index.json"
    if (path / "model.safetensors").exists() or not index.exists():
        return [path / "model.safetensors"]
    named = _read_json(index).get("weight_map", {})
    return [path / file for file in sorted(set(named.values()))]


def _full(key: str) -> str:
    return key if key.startswith(("transformer.", "lm_head.")) else f"transformer.{key}"


def _has_own_head(stored: Mapping[str, _Stored]) -> bool:
    """Whether there is a head and it differs from the embedding (as transformers 5 decides)."""
    if HEAD not in stored or EMBEDDING not in stored:
        return HEAD in stored
    return not stored[HEAD].read().equal(stored[EMBEDDING].read())


def _check_architecture(about: Mapping[str, Any], directory: str | Path) -> None:
    if about.get("model_type") != GPT2_TYPE:
        kind = about.get("model_type", "none given")
        raise UsageError(
            f"{directory} holds another architecture (model_type: {kind}, needed: {GPT2_TYPE}); give a GPT-2 directory"
        )
    found = {name: about.get(name, value) for name, value in FIXED.items()}
    found["n_inner"] = about.get("n_inner") or 4 * about.get("n_embd", 0)
    needed = {**FIXED, "n_inner": 4 * about.get("n_embd", 0)}
    for name, value in needed.items():
        if found[name] != value:
            raise UsageError(
                f"{directory} is not GPT-2 as published ({name}: {found[name]}, needed: {value}); give a plain GPT-2"
            )


def _dropout(about: Mapping[str, Any]) -> float:
    """The one dropout of the three places."""
    given = {name: about.get(name, 0.1) for name in ("embd_pdrop", "attn_pdrop", "resid_pdrop")}
    if len(set(given.values())) > 1:
        raise UsageError(f"the dropouts of config.json differ ({given}); make them one number")
    return float(given["resid_pdrop"])


def _check_shapes(stored: Mapping[str, _Stored], config: ModelConfig, directory: str | Path) -> None:
    for name, shape in shapes(config).items():
        if name not in stored:
            raise UsageError(f"{directory} holds no tensor {name}; give a complete GPT-2 directory")
        if stored[name].shape != shape:
            raise UsageError(
                f"{directory} is at odds with its config.json ({name}: {stored[name].shape}, expected: {shape}); "
                "give a complete GPT-2 directory"
            )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {file} ({error}); give a complete GPT-2 directory") from error
    if not isinstance(found, dict):
        raise UsageError(f"{file} is no JSON object (it is a {type(found).__name__}); give a complete GPT-2 directory")
    return found
