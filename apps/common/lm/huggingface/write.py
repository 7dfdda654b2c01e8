"""Writing a model as a Hugging Face directory: config.json, safetensors in one file or many, a tokenizer.

The files are written to a temporary directory and then renamed into place. Only an earlier export of the same kind of
model is overwritten. Tensors may come one by one, and each is on disk before the next. Torch is imported only by the
functions that move tensors.
"""

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from apps.common.flags.paths import GPT2_TYPE, check_export
from apps.common.lm.huggingface.read import FIXED, read_sizes, read_tensors
from apps.common.lm.huggingface.tensor_file import TensorFile, header_room
from apps.common.lm.models.gpt2_presets import ModelConfig, Shapes, shapes
from pipelined.api.data.tokens.tokenizer import Tokenizer
from pipelined.errors import UsageError

if TYPE_CHECKING:
    import torch

__all__ = ["export", "read_sizes", "read_tensors", "write"]

Tensors = Union["Mapping[str, torch.Tensor]", "Iterable[tuple[str, torch.Tensor]]"]
"""Parameters by name, all at once or one by one."""
SHARD_BYTES = 2 << 30
"""The most bytes in one file of weights, unless one tensor is larger."""


def export(directory: str | Path, tensors: Tensors, config: ModelConfig, tokenizer: Tokenizer | None) -> None:
    """Write a directory that `transformers.GPT2LMHeadModel.from_pretrained` reads.

    Args:
        tensors: every parameter once, by name; pairs may come one by one, so that the whole need not fit in memory.
    Raises:
        UsageError: as `check_export`; or it cannot be written, for example because the disk is full.
        ValueError: the tensors are not exactly the model's. In either case what was there is as it was.
    Cost: memory for one tensor, where it is not on the host as it is written.
    """
    check_export(directory)
    write(directory, tensors, shapes(config), lambda dtype: _describe(config, dtype, tokenizer), tokenizer)


def write(
    directory: str | Path,
    tensors: Tensors,
    model_shapes: Shapes,
    describe: Callable[[str], Mapping[str, Any]],
    tokenizer: Tokenizer | None,
) -> None:
    """Write the directory of any model. Either all files are replaced, or none.

    Args:
        model_shapes: every parameter's shape.
        describe: returns config.json's content for the dtype of the parameters.
    Raises:
        UsageError: it cannot be written, for example because the disk is full.
        ValueError: as `export`.
    """
    path = Path(directory)
    partial = Path(directory, ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        with closing(_Shards(partial, model_shapes)) as shards:
            for name, tensor in named_tensors(tensors):
                shards.add(name, tensor)
                del tensor  # before the next one comes
            _check_complete(shards.shapes, model_shapes)
            shards.finish()
        _write_json(partial / "config.json", describe(shards.dtype))
        if tokenizer is not None:
            tokenizer.save(partial)
        _move(partial, path)
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error}); make room there, or choose another place") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def named_tensors(tensors: Tensors) -> "Iterable[tuple[str, torch.Tensor]]":
    """The pairs of names and tensors."""
    return tensors.items() if isinstance(tensors, Mapping) else tensors


class _Shards:
    """Files of weights as they are written, numbered in order; each has tensors of one dtype.

    Args:
        directory: where they are written.
        model_shapes: every parameter's shape.
    """

    def __init__(self, directory: Path, model_shapes: Shapes):
        self._directory = directory
        self._model_shapes = model_shapes
        self._header_room = header_room(model_shapes)
        self._open_file: TensorFile | None = None
        self._names_by_file: list[list[str]] = []
        self._total, self.dtype = 0, "float32"
        self.shapes: dict[str, tuple[int, ...]] = {}

    def add(self, name: str, tensor: "torch.Tensor") -> None:
        """Write a tensor; one that the model does not have is noted alone."""
        shape = tuple(tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if name in self.shapes:
            raise ValueError(f"tensor {name} was given twice; give each parameter once")
        self.shapes[name] = shape
        if self._model_shapes.get(name) != shape:
            return
        file = self._open_file
        if file is None or file.nbytes + tensor.nbytes > SHARD_BYTES or dtype != self.dtype:
            file = self._next()
        file.add(name, tensor)
        self._names_by_file[-1].append(name)
        self._total += tensor.nbytes
        self.dtype = dtype

    def _next(self) -> TensorFile:
        """Begin a file."""
        if self._open_file is not None:
            self._open_file.finish()
        self._open_file = TensorFile(self._directory / f"{len(self._names_by_file)}", self._header_room)
        self._names_by_file.append([])
        return self._open_file

    def close(self) -> None:
        """Close what is open; files that are not finished cannot be read."""
        if self._open_file is not None:
            self._open_file.close()

    def finish(self) -> None:
        """Write what is left, and give the files the names that tell how many there are."""
        (self._open_file or self._next()).finish()
        count = len(self._names_by_file)
        files = (
            [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
            if count > 1
            else ["model.safetensors"]
        )
        for number, file in enumerate(files):
            Path(self._directory, str(number)).rename(self._directory / file)
        if count > 1:
            weight_map = {name: file for names, file in zip(self._names_by_file, files, strict=True) for name in names}
            index = {"metadata": {"total_size": self._total}, "weight_map": weight_map}
            _write_json(self._directory / "model.safetensors.index.json", index)


def _check_complete(shapes: Mapping[str, tuple[int, ...]], model_shapes: Shapes) -> None:
    names = sorted(name for name in model_shapes.keys() | shapes.keys() if model_shapes.get(name) != shapes.get(name))
    if names:
        raise ValueError(
            f"not the model's tensors ({len(names)} of {len(model_shapes)} differ, first {names[0]}: "
            f"{shapes.get(names[0])}, expected {model_shapes.get(names[0])}); give each parameter once"
        )


def _describe(config: ModelConfig, dtype: str, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The content of a GPT-2's config.json."""
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


def _move(source: Path, destination: Path) -> None:
    """Put the new files in place of an earlier export's."""
    for stale_file in destination.glob("model*.safetensors*"):
        stale_file.unlink()
    for file in source.iterdir():
        file.replace(destination / file.name)


def _write_json(file: Path, content: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
