"""The layers of a BERT, trained on masked tokens. Needs torch."""

import asyncio
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import torch

import pipelined as pp
from apps.common.lm.data.masking import Masking
from apps.common.lm.huggingface.bert import each_bert_tensor, export_bert
from apps.common.lm.models.bert import builders
from apps.common.lm.models.bert_presets import BertConfig
from apps.common.rows.text_task import TextTask
from apps.common.rows.text_training import Tensors, TextTraining
from apps.common.run.report import Report
from pipelined.api.data.tokens.tokenizer import Tokenizer
from pipelined.api.rank_session import RankSession
from pipelined.programs.plan import Plan
from pipelined.training.evaluate import Window
from pipelined.training.models.batch import Batch


class BertTraining(TextTraining):
    """A BERT on masked tokens.

    Args:
        task, plan: as in `TextTraining`.
        model: its sizes.
    """

    def __init__(self, task: TextTask, model: BertConfig, plan: Plan):
        super().__init__(task, plan)
        self._model = model

    def row(self) -> pp.Sequential:
        """The layers; see `apps.common.lm.models.bert.builders`."""
        return pp.Sequential(builders(self._model), initial="keyed")

    def stored_tensors(self, directory: Path, names: Iterable[str]) -> Tensors:
        return each_bert_tensor(directory, names)

    def write(self, directory: Path, tensors: Tensors, tokenizer: Tokenizer) -> None:
        export_bert(directory, tensors, self._model, tokenizer)

    @cached_property
    def _masking(self) -> Masking:
        symbols = self.text.tokenizer.vocab_size
        mask = self.text.tokenizer.id_of("[MASK]")
        return Masking(self.config.seed, symbols, symbols if mask is None else mask)

    def microbatch(self, step: int, number: int) -> Batch:
        """A microbatch of `TextTraining`, in which tokens are masked by the number of their sequence in the run."""
        ids = self.batches.rows(step, number)[0]
        first_sequence = step * self.plan.batch + number * self.plan.rows
        inputs, targets = map(torch.from_numpy, self._masking.mask_tokens(ids, "mask", first_sequence))
        return inputs, targets

    def held_out_windows(self) -> Sequence[Window]:
        """The windows of `TextTraining`, in which the same tokens are masked in every run of this seed."""
        windows: list[Window] = []
        for ids, _ in super().held_out_windows():
            first_sequence = sum(len(inputs) for inputs, _ in windows)
            inputs, targets = map(torch.from_numpy, self._masking.mask_tokens(ids.numpy(), "held out", first_sequence))
            windows.append((inputs, targets))
        return windows

    async def finish(self, rank: RankSession, report: Report, loss: float) -> None:
        """Compare with the frequencies of tokens, and export."""
        if rank.transport.rank == 0:
            grams = await asyncio.to_thread(self.text.score_ngrams, self.sequence)
            unigram_loss = f" (unigram {grams['unigram']:.4f} of every token)" if grams else ""
            report.say(f"validation loss {loss:.4f} nats a masked token{unigram_loss}")
        await super().finish(rank, report, loss)
