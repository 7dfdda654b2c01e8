"""A file of flags, as `--config` names it, and the flags that other projects call otherwise. No torch.

A file becomes the words of a command line in front of the user's own, so that what checks those checks it too, and a
flag that is given again wins.
"""

import argparse
import difflib
import json
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelined.errors import UsageError

FLAGS, RESOLVED = "flags", "resolved"
"""The two keys of what --print-config writes."""
LEFT_OPEN = "left_open"
"""The key of the flags that the run chose, among what it chose; checkpoints have it, too."""
ALIASES_OF_OTHER_PROJECTS = {
    **dict.fromkeys(("learning_rate", "max_lr"), "lr"),
    **dict.fromkeys(("batch_size", "global_batch_size", "train_batch_size"), "batch"),
    **dict.fromkeys(("micro_batch_size", "microbatch_size", "train_micro_batch_size_per_gpu"), "microbatch"),
    **dict.fromkeys(("gradient_accumulation_steps", "num_microbatches"), "microbatches"),
    **dict.fromkeys(("max_iters", "max_steps", "train_iters", "training_steps"), "steps"),
    **dict.fromkeys(("warmup_iters", "warmup_steps"), "warmup"),
    **dict.fromkeys(("block_size", "seq_len", "seq_length", "sequence_length"), "seq"),
    **dict.fromkeys(("n_layer", "num_layers"), "layers"),
    **dict.fromkeys(("n_head", "num_heads", "num_attention_heads"), "heads"),
    **dict.fromkeys(("n_embd", "hidden_size"), "d_model"),
    **dict.fromkeys(("grad_clip", "max_norm", "clip_grad"), "clip"),
    **dict.fromkeys(("eval_interval", "eval_steps"), "eval_every"),
    **dict.fromkeys(("save_interval", "save_steps"), "save_every"),
    **dict.fromkeys(("out_dir", "output_dir"), "checkpoint"),
    **dict.fromkeys(("pipeline_parallel_degree", "pp"), "depth"),
    **dict.fromkeys(("tensor_parallel_degree", "tp"), "tensor"),
    "dataset": "data",
    "eval_iters": "eval_windows",
}
"""Names in nanoGPT, torchtitan, Megatron, DeepSpeed and transformers, and ours for the same."""


def expand_config(arguments: Sequence[str], known: Callable[[Sequence[str]], Collection[str]]) -> list[str]:
    """A command line with the flags of its --config in front.

    Args:
        known: the names of the flags, as fields, by all words: of the file and of the command line.
    Raises:
        UsageError: see `read_flag_file` and `arguments_of_file`; or a word is a flag of another project.
    """
    path = value_of("config", arguments)
    config = {} if path is None else read_flag_file(Path(path))
    names = known([*arguments_of_file(config, config, Path()), *arguments])
    refuse_names_of_others(arguments, names)
    return _join_recompute([*arguments_of_file(config, names, Path(path or "")), *arguments])


def _join_recompute(arguments: Sequence[str]) -> list[str]:
    """A command line with `--recompute attention` as one word: no flag has a value that may be left out."""
    words: list[str] = []
    for word in arguments:
        if word == "attention" and words[-1:] == ["--recompute"]:
            word = f"{words.pop()}={word}"
        words.append("--recompute-attention" if word == "--recompute=attention" else word)
    return words


def value_of(name: str, arguments: Sequence[str]) -> str | None:
    """The value of a flag that must be known before the others: a file of flags, or the schedule, which has its own."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(f"--{name}", nargs="?", dest="value")
    return parser.parse_known_args(arguments)[0].value


def read_flag_file(path: Path) -> Mapping[str, Any]:
    """The flags in a file and their values, by the names of fields, without those that it leaves open.

    Args:
        path: JSON (`.json`), for example what --print-config wrote; or else TOML.
    Raises:
        UsageError: the file cannot be read, a value is a table, or it names another such file.
    """
    content = _read(path)
    if content.keys() == {FLAGS, RESOLVED} and isinstance(content[FLAGS], dict):
        content = content[FLAGS]
    flags = {key.replace("-", "_"): value for key, value in content.items()}
    flags = {key: value for key, value in flags.items() if value not in (None, [])}
    if "config" in flags:
        raise UsageError(f"{path} names another file of flags (config: {flags['config']}); write all flags into one")
    for key, value in flags.items():
        texts = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if not texts and not isinstance(value, str | int | float | None):
            fact = f"{path} has no value of a flag at {key!r} ({type(value).__name__})"
            raise UsageError(f"{fact}; write keys and values without tables")
    return flags


def arguments_of_file(config: Mapping[str, Any], known: Collection[str], path: Path) -> list[str]:
    """The arguments of a command line for what `read_flag_file` read.

    Args:
        known: the names of the flags, as fields.
    Raises:
        UsageError: a key is no flag.
    """
    for key in config:
        if key not in known:
            raise UsageError(f"{path} has a key that is no flag ({key!r}); {_remedy(key, known)}")
    return [word for key, value in config.items() for word in _words("--" + key.replace("_", "-"), value)]


def refuse_names_of_others(arguments: Sequence[str], known: Collection[str]) -> None:
    """Raises UsageError: a word is a flag of another project; the message has ours."""
    for word in arguments:
        flag = word.partition("=")[0]
        name = flag.removeprefix("--").replace("-", "_")
        if flag.startswith("--") and name not in known and ALIASES_OF_OTHER_PROJECTS.get(name) in known:
            raise UsageError(f"no flag is called {flag}; {_remedy(name, known, '--')}")


def _remedy(name: str, known: Collection[str], dashes: str = "") -> str:
    near = (
        [ALIASES_OF_OTHER_PROJECTS[name]]
        if ALIASES_OF_OTHER_PROJECTS.get(name) in known
        else difflib.get_close_matches(name, sorted(known), 1)
    )
    if not near:
        return "leave it out; --help lists the flags"
    return f"did you mean {dashes}{near[0].replace('_', '-') if dashes else near[0]}?"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); give --config a readable file") from error
    except ValueError as error:
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise UsageError(f"{path} is not {kind} ({error}); correct it, or name JSON with .json") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} holds no keys ({type(content).__name__}); write an object of flags and values")
    return content


def _words(flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    return [flag, *value] if isinstance(value, list) else [f"{flag}={value}"]
