"""Train a BERT on masked tokens, or train one further: `mpirun -n 4 python -m apps.bert`, or without a launcher.

Its flags are those of any row of layers that learns from text, and its own.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from apps.common.flags.presets import find_preset
from apps.common.lm.data.text import Text
from apps.common.lm.huggingface.bert import BERT_TYPE, read_bert
from apps.common.lm.models.bert_presets import BERT_PRESETS, BertConfig
from apps.common.rows.program import main
from apps.common.rows.text_task import TextRowFlags, TextTask
from pipelined.errors import UsageError
from pipelined.process.exit import end_process
from pipelined.programs.plan import Plan

if TYPE_CHECKING:
    from apps.bert.training import BertTraining

EXTRA_LAYERS = 3
"""Layers besides the blocks: the embeddings, what comes before the head's matrix, and that."""


@dataclass(frozen=True)
class BertFlags(TextRowFlags):
    """Train a BERT on the masked tokens of a text, across ranks, or train one of Hugging Face's further."""

    preset: str = "tiny"
    """Model: tiny, bert-base, bert-large, or chimera (Bert-48 of the paper)."""
    dropout: float | None = None
    """Dropout probability in training, instead of the preset's."""
    init: Path | None = None
    """Start from a Hugging Face directory of a BERT with its head for masked tokens, which determines the sizes."""

    def task(self) -> "BertTask":
        model = find_preset(self.preset, BERT_PRESETS) if self.init is None else read_bert(self.init)
        dropout = model.dropout if self.dropout is None else self.dropout
        return BertTask(self, replace(model, **self.size_overrides(model), dropout=dropout))


class BertTask(TextTask):
    """A BERT on masked tokens."""

    def __init__(self, config: BertFlags, model: BertConfig):
        super().__init__(config, model, BERT_TYPE, EXTRA_LAYERS)
        self.model = model

    def required_vocab(self, text: Text) -> int:
        """The tokenizer's symbols, and the mask if the tokenizer has none."""
        has_mask = text.tokenizer.id_of("[MASK]") is not None
        return text.tokenizer.vocab_size + (not has_mask)

    def read(self) -> Text:
        """Read the text.

        Raises:
            UsageError: as `TextTask.read`; or the documents are packed, and a mask would hide tokens that do not count.
        """
        if self.is_packed:
            fact = "BERT masks tokens of running text, not of packed documents"
            raise UsageError(f"{fact}; write the tokens without --pack")
        return super().read()

    def training(self, plan: Plan) -> "BertTraining":
        from apps.bert.training import BertTraining

        return BertTraining(self, self.model, plan)


if __name__ == "__main__":
    end_process(main("apps.bert", BertFlags()))
