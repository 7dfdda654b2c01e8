"""The interface of the training of a row of layers: its model and its data, by step and microbatch. Needs torch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

import pipelined as pp
from apps.common.run.report import Report
from pipelined.api.rank_session import RankSession
from pipelined.training.evaluate import Window
from pipelined.training.models.batch import Batch
from transports import Transport


class RowTraining(ABC):
    """A model and its data. Every rank of a process makes one, and reads the data alike."""

    @abstractmethod
    def row(self) -> pp.Sequential:
        """The layers by name."""

    @abstractmethod
    def loss(self, output: Any, targets: Any) -> torch.Tensor | tuple[torch.Tensor, int]:
        """The mean loss of a microbatch, or its sum and what it counts."""

    @abstractmethod
    def example(self, rows: int) -> Batch:
        """Inputs and targets of this number of rows; their values are not read (meta or expanded tensors)."""

    async def read(self, transport: Transport) -> str:
        """Read the data; all ranks call this together. Returns a line about it, "" for none."""
        return ""

    @abstractmethod
    def microbatch(self, step: int, number: int) -> Batch:
        """Inputs and targets of a microbatch, numbered over all groups."""

    @abstractmethod
    def held_out_windows(self) -> Sequence[Window]:
        """What is evaluated, in microbatches."""

    def notes(self) -> dict[str, Any]:
        """What checkpoints record of the data that was read, as JSON can hold it."""
        return {}

    async def before_first_step(self, rank: RankSession) -> None:
        """What happens before the first step of a run that resumes none, such as loading initial values."""
        return None

    @abstractmethod
    async def finish(self, rank: RankSession, report: Report, loss: float) -> None:
        """What happens after the last step: what was learnt, exports, samples.

        Args:
            loss: over what is held out, after the last step.
        """
