"""Flags that the programs of several commands share, and dataclasses of flags as the words of a command line."""

from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from apps.common.flags.paths import check_directory, check_file
from pipelined.errors import UsageError, refuse_below
from pipelined.process.reporting.events import Level

MAX_PORT = 65_535


@dataclass(frozen=True)
class Coordinator:
    """Run the directory: the members, and what is committed."""

    listen: str = "tcp://127.0.0.1:0"
    """Where the directory accepts requests; the port is printed. Other machines need PIPELINED_KEY."""
    journal: Path | None = None
    """File from which a restarted coordinator continues; without it a restart ends the training."""
    log: Level = "warning"
    """Events from this level up go to stderr, a line each: debug, info, warning or error."""

    def check(self) -> None:
        """Raises UsageError: it cannot run so."""
        check_files(journal=self.journal)


@dataclass(frozen=True)
class TextFlags:
    """The text that is trained on, and its tokenizer; the same for all processes that read it."""

    data: tuple[Path, ...] = ()
    """Text files or directories. Default: Shakespeare's plays (extra shakespeare), or else Python's help topics."""
    tokenizer: str = "bytes"
    """bytes (256 symbols), gpt2, bpe:N, a tokenizer.json, or a directory with one."""


AT_END = "0 saves only at the end"
"""What --save-every 0 means, in every program."""


@dataclass(frozen=True)
class FileFlags:
    """A file with flags of a command."""

    config: Path | None = None
    """Read flags of this command from this file: TOML, or JSON. Flags of the command line win."""


@dataclass(frozen=True)
class ProcessFlags(FileFlags):
    """What commands that run a process of a system share."""

    log: Level = "warning"
    """Events from this level up go to stderr, a line each: debug, info, warning or error."""


@dataclass(frozen=True)
class OutputFlags:
    """What is written of a trained model, and how it is sampled from."""

    to: Path | None = None
    """Directory to write."""
    text: TextFlags = field(default_factory=TextFlags)
    sample: int = 0
    """Tokens to sample."""
    prompt: str = "ROMEO"
    """What the sample begins with."""
    context: int | None = None
    """Tokens that a sample looks back on. Default: the model's positions."""
    seed: int = 0
    """Seed of the sample."""

    def check(self) -> None:
        """Raises UsageError: there is nothing to do, or it cannot be done."""
        check_sample(self.sample, self.prompt)
        check_needs(self, prompt="sample", context="sample", seed="sample")
        if self.to is None and not self.sample:
            raise UsageError("there is nothing to do; add --to DIR, or --sample N")
        check_directories(to=self.to)
        if self.context is not None:
            refuse_below(1, "--context", self.context)


@dataclass(frozen=True)
class ModelFlags:
    """The sizes of a transformer."""

    layers: int | None = None
    """Transformer blocks, instead of the preset's."""
    d_model: int | None = None
    """Width of the model, instead of the preset's."""
    heads: int | None = None
    """Attention heads, instead of the preset's."""


@dataclass(frozen=True)
class FinalFlags:
    """What becomes of the model at the end of its training."""

    export: Path | None = None
    """Write the model to this directory at the end, in Hugging Face's format."""
    sample: int = 0
    """Tokens to sample at the end. This and --export fetch all parameters."""
    prompt: str = "ROMEO"
    """What the sample begins with."""

    def check(self) -> None:
        """Raises UsageError: it cannot be done."""
        check_sample(self.sample, self.prompt)
        check_needs(self, prompt="sample")
        check_directories(export=self.export)


@dataclass(frozen=True)
class ShowFlags:
    """How the status of a system is shown."""

    json: bool = False
    """Print one JSON object instead; with --watch or --web one a second, each on a line."""
    watch: bool = False
    """Refresh every second."""
    web: int | None = None
    """Also serve a page at this port of 127.0.0.1 (/, /status.json and, of a swarm, /metrics); 0: any free port."""

    def check(self) -> None:
        """Raises UsageError: there is no such port."""
        if self.web is not None and not 0 <= self.web <= MAX_PORT:
            raise UsageError(f"--web must be a port from 0 to {MAX_PORT} (it is {self.web}); 0 takes any free one")


def names_of(kind: type) -> list[str]:
    """The names of the flags that a dataclass makes, as fields; it may have further dataclasses as fields."""
    hints = get_type_hints(kind)
    name_lists = [names_of(hints[f.name]) if is_dataclass(hints[f.name]) else [f.name] for f in fields(kind)]
    return [name for names in name_lists for name in names]


def arguments_of(flags: Any) -> list[str]:
    """The words of a command line that gives these flags their values; one that has its default is left out.

    Args:
        flags: a dataclass of flags, perhaps with further ones as fields.
    """
    words = list[str]()
    for entry in fields(flags):
        value = getattr(flags, entry.name)
        name = f"--{entry.name.replace('_', '-')}"
        if is_dataclass(value):
            words += arguments_of(value)
        elif value is True:
            words += [name]
        elif isinstance(value, tuple):
            words += [name, *map(str, value)] if value else []
        elif value is not None and value != entry.default:
            words += [f"{name}={value}"]  # "=", as a value may begin with "-"
    return words


def check_files(**named: Path | None) -> None:
    """Refuse files that cannot be written, by the names of their flags. Raises UsageError: as `check_file`."""
    for name, path in named.items():
        if path is not None:
            check_file(f"--{name}", path)


def check_directories(**named: Path | None) -> None:
    """Refuse directories that cannot be written into, by the names of their flags. Raises: as `check_directory`."""
    for name, path in named.items():
        if path is not None:
            check_directory(f"--{name}", path)


def check_needs(flags: Any, remedy: str = "add it", **needs: str) -> None:
    """Refuse flags that would do nothing, as `save_every="checkpoint"` where that directory is not given.

    Args:
        flags: a dataclass of flags.
        remedy: what to do, beside leaving the flag out.
        needs: by field, the field of the flag without which it means nothing.
    Raises:
        UsageError: a flag has another value than its default, and the one that it needs is not given.
    """
    defaults = {entry.name: entry.default for entry in fields(flags)}
    for name, needed_name in needs.items():
        value = getattr(flags, name)
        is_given = value != defaults[name]
        if is_given and getattr(flags, needed_name) == defaults[needed_name]:
            flag = f"--{name.replace('_', '-')}"
            flag_text = flag if value is True else f"{flag} {value!r}" if isinstance(value, str) else f"{flag} {value}"
            raise UsageError(f"{flag_text} means nothing without --{needed_name}; {remedy}, or leave {flag} out")


def check_microbatches(batch: int, microbatch: int) -> None:
    """Refuse a step that is not made of whole microbatches. Raises UsageError."""
    if batch % microbatch:
        fact = f"a step is not made of whole microbatches (batch: {batch}, microbatch: {microbatch})"
        raise UsageError(f"{fact}; let --microbatch divide --batch")


def check_sample(tokens: int, prompt: str) -> None:
    """Refuse a sample that nothing begins. Raises UsageError."""
    refuse_below(0, "--sample", tokens)
    if tokens and not prompt:
        raise UsageError("a sample needs at least one character to begin with (--prompt is empty); or --sample 0")
