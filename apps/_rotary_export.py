"""Writing SWARM's Transformer as Hugging Face keeps models, and reading its sizes back; see docs/swarm-model.md.

The one rule: config.json says all that is needed to compute with the tensors, whatever stages they were trained in. No
class of `transformers` computes this model, so its `model_type` is our own. This file must not know of swarms.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps._huggingface import write
from apps._presets import Shapes
from apps._rotary_presets import BASE, RotaryConfig, layer_shapes
from apps._tokenizer import Tokenizer
from pipelined.errors import UsageError

if TYPE_CHECKING:
    import torch

MODEL_TYPE = "swarm_rotary"
OF_TRAINING = {"dropout", "deviation"}
"""Fields of a model's sizes that say how it was trained, and nothing of what it computes."""


def export_rotary(
    directory: str | Path, tensors: "Mapping[str, torch.Tensor]", config: RotaryConfig, tokenizer: Tokenizer | None
) -> None:
    """Write config.json, the tensors as safetensors, and the tokenizer.

    Args:
        tensors: every parameter once, by name.
    Raises:
        UsageError: as `check_place`.
        ValueError: the tensors are not exactly the model's. In either case what was there is as it was.
    """
    check_place(directory)
    wanted: Shapes = {name: shape for layer in layer_shapes(config) for name, shape in layer.items()}
    write(directory, tensors, wanted, lambda dtype: describe(config, dtype, tokenizer), tokenizer)


def check_place(directory: str | Path) -> None:
    """Refuse to write where something else lies: only a new, an empty, or an earlier directory of this model is taken.

    Raises:
        UsageError: the directory is none of these.
    """
    path = Path(directory)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file; name a directory")
    if path.exists() and any(path.iterdir()) and _read(path).get("model_type") != MODEL_TYPE:
        raise UsageError(f"{path} holds something else than this model ({MODEL_TYPE}); name a new directory")


def read_rotary(directory: str | Path) -> RotaryConfig:
    """The sizes of an exported model, without dropout.

    Raises:
        UsageError: it is none.
    """
    about = _read(Path(directory))
    names = {field.name for field in fields(RotaryConfig)} - OF_TRAINING
    if about.get("model_type") != MODEL_TYPE or not names <= about.keys():
        raise UsageError(f"{directory} holds no model of this kind (needed: {MODEL_TYPE}); name an export of a swarm")
    return RotaryConfig(**{**{name: about[name] for name in names}, "narrow": tuple(about["narrow"])}, dropout=0.0)


def describe(config: RotaryConfig, dtype: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """What config.json says.

    Args:
        dtype: of the tensors.
    """
    end = tokenizer.end_of_text if tokenizer else None
    return {
        "architectures": ["RotaryLM"],
        "model_type": MODEL_TYPE,
        **{name: value for name, value in asdict(config).items() if name not in OF_TRAINING},
        "rope_theta": BASE,
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": dtype,
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
