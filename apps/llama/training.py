"""The layers of a Llama-like model, trained on the next token, and a sample at the end. Needs torch."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

import pipelined as pp
from apps.common.lm.data.ngram import compare_with_ngrams
from apps.common.lm.huggingface.llama import each_llama_tensor, export_llama
from apps.common.lm.huggingface.rotary import each_rotary_tensor, export_rotary
from apps.common.lm.models import llama, rotary
from apps.common.lm.models.llama_presets import LlamaConfig
from apps.common.lm.models.rotary_presets import RotaryConfig
from apps.common.lm.sampling import Picker
from apps.common.rows.text_task import TextTask
from apps.common.rows.text_training import Tensors, TextTraining
from apps.common.run.report import Report
from pipelined.api.data.tokens.tokenizer import Tokenizer
from pipelined.api.rank_session import RankSession
from pipelined.errors import printable
from pipelined.programs.plan import Plan

Sizes = TypeVar("Sizes")


class NextTokenTraining(TextTraining, Generic[Sizes]):
    """A model of the next token on text.

    Args:
        task, plan: as in `TextTraining`.
        model: its sizes.
        prompt: the beginning of the sample.
        sample: tokens to sample at the end.
    """

    def __init__(self, task: TextTask, model: Sizes, plan: Plan, prompt: str, sample: int):
        super().__init__(task, plan)
        self._model, self._prompt, self._sample = model, prompt, sample

    async def finish(self, rank: RankSession, report: Report, loss: float) -> None:
        """Compare with n-grams, export, and sample."""
        text = self.text
        is_first = rank.transport.rank == 0
        if is_first:
            report.say(compare_with_ngrams(loss, await asyncio.to_thread(text.score_ngrams, self.sequence)))
        await super().finish(rank, report, loss)
        if self._sample:
            prompt = text.tokenizer.encode(self._prompt).tolist()
            pick = Picker(self.config.seed)
            tokens = await rank.sample(prompt, self._sample, self.sequence, pick, cached=True)
            if is_first:
                report.say("sample:\n" + printable(text.tokenizer.decode(tokens)))


class LlamaTraining(NextTokenTraining[LlamaConfig]):
    """A Llama, SmolLM or Qwen; see `NextTokenTraining`."""

    def row(self) -> pp.Sequential:
        """The layers; see `apps.common.lm.models.llama.builders`."""
        return pp.Sequential(llama.builders(self._model), initial="keyed")

    def stored_tensors(self, directory: Path, names: Iterable[str]) -> Tensors:
        """Tensors of a Llama, SmolLM or Qwen."""
        return each_llama_tensor(directory, names)

    def write(self, directory: Path, tensors: Tensors, tokenizer: Tokenizer) -> None:
        export_llama(directory, tensors, self._model, tokenizer)


class RotaryTraining(NextTokenTraining[RotaryConfig]):
    """The model of SWARM; see `NextTokenTraining`."""

    def row(self) -> pp.Sequential:
        """The layers; see `apps.common.lm.models.rotary.builders`."""
        return pp.Sequential(rotary.builders(self._model, self.config.seed), initial="keyed")

    def stored_tensors(self, directory: Path, names: Iterable[str]) -> Tensors:
        """Tensors that a swarm exported."""
        return each_rotary_tensor(directory, names)

    def write(self, directory: Path, tensors: Tensors, tokenizer: Tokenizer) -> None:
        export_rotary(directory, tensors, self._model, tokenizer)
