"""Tokens for the runtime: tensors by step and global microbatch."""

from dataclasses import dataclass

import torch

from apps.common.lm.data.batches import Batches, validation_windows
from apps.common.lm.data.text import Text
from pipelined.training.evaluate import Window

ROWS = 16
"""Windows evaluated at once: the same everywhere, so that an evaluation's sum has one order."""


@dataclass(frozen=True)
class TokenFeed:
    """The training data of a job: any rank can make any microbatch."""

    batches: Batches

    def inputs(self, step: int, microbatch: int) -> torch.Tensor:
        """Token ids (B, T)."""
        return torch.from_numpy(self.batches.rows(step, microbatch)[0])

    def targets(self, step: int, microbatch: int) -> torch.Tensor:
        """The ids that follow, (B, T)."""
        return torch.from_numpy(self.batches.rows(step, microbatch)[1])


def windows_of(text: Text, sequence: int) -> list[Window]:
    """The validation text in windows of one sequence, some rows at a time."""
    windows = validation_windows(text.validation, sequence, text.windows)
    inputs, targets = (torch.from_numpy(part.astype("int64")) for part in windows)
    return list(zip(inputs.split(ROWS), targets.split(ROWS), strict=True))
