"""Writing a GPT-2 directory as Hugging Face keeps them: config.json, safetensors in one file or many, a tokenizer.

Everything is prepared aside and then renamed into place, and nothing but an earlier GPT-2 is ever written over. The
tensors may come one by one. This file must not know where they come from. Reading is in `_huggingface_read`, and
offered here too; torch is imported only where tensors move.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apps.common.paths import GPT2_TYPE, check_export
from apps.lm.data.tokenizer import Tokenizer
from apps.lm.huggingface.read import FIXED, read_config, read_tensors
from apps.lm.models.gpt2_presets import ModelConfig, Shapes, shapes
from pipelined.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["export", "read_config", "read_tensors", "write"]

SHARD_BYTES = 2 << 30
"""A file of weights is closed before it holds more than this."""


def export(
    directory: str | Path,
    tensors: "Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]",
    config: ModelConfig,
    tokenizer: Tokenizer | None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a directory that `transformers.GPT2LMHeadModel.from_pretrained` reads.

    Args:
        tensors: every parameter once, by name; pairs may come one by one, so that the whole need not fit in memory.
        shard_bytes: the most that a file of weights holds, unless one tensor is larger.
    Raises:
        UsageError: as `check_export`; or it cannot be written, as where there is no room.
        ValueError: the tensors are not exactly the model's. In either case what was there is as it was.
    Cost: memory for one shard.
    """
    check_export(directory)
    write(directory, tensors, shapes(config), lambda dtype: _describe(config, dtype, tokenizer), tokenizer, shard_bytes)


def write(
    directory: str | Path,
    tensors: "Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]]",
    wanted: Shapes,
    describe: Callable[[str], Mapping[str, Any]],
    tokenizer: Tokenizer | None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write any model's directory, all of it or nothing, over whatever model is there.

    Args:
        wanted: every parameter's shape.
        describe: what config.json says, of the parameters' dtype.
    Raises:
        UsageError: it cannot be written, as where there is no room.
        ValueError: as `export`.
    """
    from safetensors import SafetensorError

    path, aside = Path(directory), Path(directory, ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        shards = _Shards(aside, shard_bytes)
        for name, tensor in tensors.items() if isinstance(tensors, Mapping) else tensors:
            shards.add(name, tensor)
        _check_complete(shards.shapes, wanted)
        shards.finish()
        _write_json(aside / "config.json", describe(shards.dtype))
        if tokenizer is not None:
            tokenizer.save(aside)
        _move(aside, path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"cannot write {path} ({error}); make room there, or choose another place") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class _Shards:
    """Files of weights in the making, numbered as they fill.

    Args:
        aside: where they are written.
        limit: the most bytes in one.
    """

    def __init__(self, aside: Path, limit: int):
        self._aside, self._limit = aside, limit
        self._filling: dict[str, torch.Tensor] = {}
        self._filled: list[tuple[str, ...]] = []
        self._bytes, self._total, self.dtype = 0, 0, "float32"
        self.shapes: dict[str, tuple[int, ...]] = {}

    def add(self, name: str, tensor: "torch.Tensor") -> None:
        if self._filling and self._bytes + tensor.nbytes > self._limit:
            self._close()
        self._filling[name] = tensor.detach().cpu().contiguous().clone()
        self._bytes += tensor.nbytes
        self._total += tensor.nbytes
        self.shapes[name], self.dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")

    def _close(self) -> None:
        from safetensors.torch import save_file

        save_file(self._filling, self._aside / f"{len(self._filled)}", metadata={"format": "pt"})
        self._filled.append(tuple(self._filling))
        self._filling, self._bytes = {}, 0

    def finish(self) -> None:
        """Write what is left, and give the files the names that tell how many there are."""
        self._close()
        count = len(self._filled)
        files = (
            [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
            if count > 1
            else ["model.safetensors"]
        )
        for number, file in enumerate(files):
            Path(self._aside, str(number)).rename(self._aside / file)
        if count > 1:
            where = {name: file for names, file in zip(self._filled, files, strict=True) for name in names}
            index = {"metadata": {"total_size": self._total}, "weight_map": where}
            _write_json(self._aside / "model.safetensors.index.json", index)


def _check_complete(given: Mapping[str, tuple[int, ...]], wanted: Shapes) -> None:
    wrong = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
    if wrong:
        raise ValueError(
            f"not the model's tensors ({len(wrong)} of {len(wanted)} differ, first {wrong[0]}: "
            f"{given.get(wrong[0])}, expected {wanted.get(wrong[0])}); give each parameter once"
        )


def _describe(config: ModelConfig, dtype: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """What config.json says."""
    end = tokenizer.end_of_text if tokenizer else None
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": GPT2_TYPE,
        "n_layer": config.layers,
        "n_embd": config.d_model,
        "n_head": config.heads,
        "n_inner": None,
        "n_positions": config.positions,
        "vocab_size": config.vocab,
        **dict.fromkeys(("embd_pdrop", "attn_pdrop", "resid_pdrop"), config.dropout),
        **FIXED,
        "initializer_range": config.deviation,
        "tie_word_embeddings": config.tied,
        "bos_token_id": end,
        "eos_token_id": end,
        "dtype": dtype,
    }


def _move(aside: Path, path: Path) -> None:
    """Put the new files in place of an earlier export's."""
    for old in path.glob("model*.safetensors*"):
        old.unlink()
    for file in aside.iterdir():
        file.replace(path / file.name)


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
