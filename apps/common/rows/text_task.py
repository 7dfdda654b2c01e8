"""The flags of a row of layers that learns from text, and what such a program trains. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from apps.common.flags.paths import check_export
from apps.common.flags.run_flags import MINIMUM, TextDataFlags, start_of
from apps.common.lm.data.text import Text, read_text, require_text
from apps.common.rows.config import RowFlags, RowTask
from pipelined.api.data.tokens.index import is_packed
from pipelined.errors import UsageError

SEQUENCE = 64
"""Tokens a sequence, by default, if the model has as many positions."""


@dataclass(frozen=True)
class TextRowFlags(TextDataFlags, RowFlags):
    """How a row of layers learns from text; a program adds its model."""

    preset: str = "tiny"
    """Model."""
    layers: int | None = None
    """Transformer blocks, instead of the preset's."""
    vocab: int | None = None
    """Vocabulary of the model, at least that of the tokenizer, instead of the preset's."""
    seq: int | None = None
    """Tokens of a sequence. Default: 64, or the model's positions if they are fewer."""
    init: Path | None = None
    """Start from a Hugging Face directory, which determines the sizes."""
    export: Path | None = None
    """Write a Hugging Face directory at the end."""

    def least(self) -> Mapping[str, float]:
        return MINIMUM | dict.fromkeys(("layers", "vocab", "seq"), 1) | {"eval_windows": 0}

    def size_overrides(self, model: "TextSizes") -> dict[str, Any]:
        """The sizes that flags give.

        Args:
            model: of the preset, or of the directory of --init, whose sizes flags may repeat.
        Raises:
            UsageError: they differ from those of the directory.
        """
        sizes = {name: getattr(self, name) for name in ("layers", "vocab") if getattr(self, name) is not None}
        comparisons = [f"--{name} {value}, there: {getattr(model, name)}" for name, value in sizes.items()]
        if self.init is not None and any(value != getattr(model, name) for name, value in sizes.items()):
            raise UsageError(f"{self.init} determines the sizes ({'; '.join(comparisons)}); leave these flags out")
        return sizes


class TextSizes(Protocol):
    """The sizes of a model of tokens."""

    @property
    def layers(self) -> int: ...

    @property
    def vocab(self) -> int: ...

    @property
    def positions(self) -> int: ...

    @property
    def parameters(self) -> int: ...

    def to_dict(self) -> dict[str, Any]: ...


class TextTask(RowTask):
    """A model of tokens on text.

    Args:
        config: the flags.
        model: its sizes.
        kind: the `model_type` of a directory that is exported.
        extra_layers: layers between which stages can be cut, besides the blocks.
    Raises:
        UsageError: the model has too few positions for the sequences.
    """

    unit, rows = "tokens", "sequences"
    besides = "embedding and head"
    config: TextRowFlags

    def __init__(self, config: TextRowFlags, model: TextSizes, kind: str, extra_layers: int):
        self.config = config
        self.model_config = model
        self.kind = kind
        self.depth = model.layers + extra_layers
        self.units_per_row = config.seq or min(SEQUENCE, model.positions)
        if self.units_per_row > model.positions:
            fact = f"a sequence does not fit the model's positions (--seq {config.seq}, positions: {model.positions})"
            raise UsageError(f"{fact}; take --seq between 1 and {model.positions}")

    def describe(self) -> str:
        model = self.model_config
        source = self.config.init or self.config.preset
        return (
            f"model: {self.kind} {source}, {model.parameters:,} parameters, {model.layers} blocks, vocabulary "
            f"{model.vocab}, sequences of {self.units_per_row} tokens"
        )

    def sizes(self) -> dict[str, Any]:
        return {**self.model_config.to_dict(), "seq": self.units_per_row}

    def check(self) -> None:
        if self.config.export is not None:
            check_export(self.config.export, self.kind)

    @cached_property
    def is_packed(self) -> bool:
        """Whether some targets of the data do not count; see `Text.is_packed`."""
        return is_packed([*self.config.data, *self.config.val_data])

    def required_vocab(self, text: Text) -> int:
        """The symbols that the model must have."""
        return text.tokenizer.vocab_size

    def read(self) -> Text:
        """The text that the flags name, which the model has symbols enough for.

        Raises:
            UsageError: the model has too few, or the run resumes a checkpoint of another text; or see `read_text`.
        """
        config, vocab = self.config, self.model_config.vocab
        tokenizer = config.tokenizer or str(config.init or "")
        text = read_text(config.data, tokenizer, config.val_data, config.eval_windows)
        if (symbols := self.required_vocab(text)) > vocab:
            fact = f"the tokenizer has more symbols than the model (tokenizer: {symbols}, model: {vocab})"
            raise UsageError(f"{fact}; take --vocab {symbols} or another --tokenizer")
        require_text(start_of(config), text.digests, config.new_data)
        return text
