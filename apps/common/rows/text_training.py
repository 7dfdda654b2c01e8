"""A row of layers trained on text, and written as a Hugging Face directory. Needs torch."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from apps.common.lm.data.batches import Batches, validation_windows
from apps.common.lm.data.text import Text, share_text
from apps.common.lm.data.tokens import windows_of
from apps.common.lm.huggingface.initial import load_initial
from apps.common.lm.models.gpt2 import counted_loss, token_loss
from apps.common.rows.row_training import RowTraining
from apps.common.rows.text_task import TextTask
from apps.common.run.report import Report
from pipelined.api.data.tokens.tokenizer import Tokenizer
from pipelined.api.rank_session import RankSession
from pipelined.programs.plan import Plan
from pipelined.state.checkpoints.whole_state import write_parameters
from pipelined.training.evaluate import Window
from pipelined.training.models.batch import Batch
from transports import Transport

Tensors = Iterable[tuple[str, torch.Tensor]]


class TextTraining(RowTraining):
    """Layers from ids (B, T) to logits (B, T, V).

    Args:
        task: the model's sizes and the flags.
        plan: the cut of a step's batch.

    Attributes:
        text: what is learnt from, once it is read.
        batches: its sequences by step and microbatch.
    """

    text: Text
    batches: Batches

    def __init__(self, task: TextTask, plan: Plan):
        self.task = task
        self.config = task.config
        self.plan = plan
        self.sequence = task.units_per_row

    @abstractmethod
    def stored_tensors(self, directory: Path, names: Iterable[str]) -> Tensors:
        """Tensors of a Hugging Face directory, by our names."""

    @abstractmethod
    def write(self, directory: Path, tensors: Tensors, tokenizer: Tokenizer) -> None:
        """Write a Hugging Face directory, of tensors by our names."""

    def loss(self, output: torch.Tensor, targets: Any) -> torch.Tensor | tuple[torch.Tensor, int]:
        return counted_loss(output, targets) if self.task.is_packed else token_loss(output, targets)

    def example(self, rows: int) -> Batch:
        ids = torch.zeros((), dtype=torch.int64).expand(rows, self.sequence)
        return ids, ids

    async def read(self, transport: Transport) -> str:
        self.text = await share_text(transport, self._read)
        self.batches = self._batches(self.text)
        tokens = self.plan.batch * self.sequence * self.config.steps
        return self.text.describe(tokens, self.config.steps, self.sequence)

    def _read(self) -> Text:
        text = self.task.read()
        text.require_countable(self.plan)
        self._batches(text)
        validation_windows(text.validation, self.sequence, text.windows)
        return text

    def _batches(self, text: Text) -> Batches:
        return Batches(text.train, self.sequence, self.plan.rows, self.plan.total_microbatches, self.config.seed)

    def microbatch(self, step: int, number: int) -> Batch:
        inputs, targets = map(torch.from_numpy, self.batches.rows(step, number))
        return inputs, targets

    def held_out_windows(self) -> Sequence[Window]:
        return windows_of(self.text, self.sequence)

    def notes(self) -> dict[str, Any]:
        """The digests of text and tokenizer, which a resumed run must have, too."""
        return {"text": self.text.digests}

    async def before_first_step(self, rank: RankSession) -> None:
        """Load the parameters of --init."""
        if (directory := self.config.init) is not None:
            await load_initial(rank.trainer, lambda names: self.stored_tensors(directory, names))

    async def finish(self, rank: RankSession, report: Report, loss: float) -> None:
        """Write the directory of --export."""
        if (directory := self.config.export) is None:
            return
        tokenizer = self.text.tokenizer
        await write_parameters(rank.trainer, lambda parameters: self.write(directory, parameters, tokenizer))
        report.say(f"exported to {directory}")
