"""Batches of whole steps, cut into the microbatches that the ranks compute.

A batch is a pair (inputs, targets). The rows of both are cut in order: microbatch 0 has the first rows.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice

import torch

from pipelined.errors import UsageError

Batch = tuple[torch.Tensor, torch.Tensor]


class BatchError(UsageError):
    """Batches that do not fit the job; the message gives both numbers."""


class CutBatches(ABC):
    """Batches by step, each cut into microbatches of equal size.

    Args:
        rows: the rows of one microbatch.
        dtype: floating-point inputs and targets are converted to it.
    """

    def __init__(self, rows: int, dtype: torch.dtype):
        self._rows, self._dtype = rows, dtype

    @abstractmethod
    def batch(self, step: int) -> Batch: ...

    def inputs(self, step: int, microbatch: int) -> torch.Tensor:
        return self._cut(self.batch(step)[0], microbatch)

    def targets(self, step: int, microbatch: int) -> torch.Tensor:
        return self._cut(self.batch(step)[1], microbatch)

    def _cut(self, tensor: torch.Tensor, microbatch: int) -> torch.Tensor:
        return self._converted(tensor[microbatch * self._rows : (microbatch + 1) * self._rows])

    def _converted(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor


class StepFeed(CutBatches):
    """The batch of the step that is being trained, as a user's own loop gives it.

    Args:
        microbatches: the microbatches of a step, over all pipelines.
    """

    def __init__(self, rows: int, microbatches: int, dtype: torch.dtype):
        super().__init__(rows, dtype)
        self._all_rows = rows * microbatches
        self._batches: dict[int, Batch] = {}

    def check(self, batch: object) -> None:
        """Refuse a batch that is not one step's.

        Raises:
            BatchError: it is not a pair of tensors, or has other rows than a step of the plan.
        """
        inputs, targets = _pair(batch, "the batch")
        if not len(inputs) == len(targets) == self._all_rows:
            fact = f"the batch has {len(inputs)} rows of inputs and {len(targets)} of targets"
            raise BatchError(f"{fact} (a step of the plan: {self._all_rows}); give as many, or choose another plan")

    def give(self, step: int, batch: Batch) -> None:
        """Set the batch of a step; every rank of the process gives the same one, and may be a step behind another."""
        self._batches = {number: one for number, one in self._batches.items() if number >= step - 1} | {step: batch}

    def batch(self, step: int) -> Batch:
        return self._batches[step]

    def windows(self, batch: object) -> list[Batch]:
        """A batch of any number of rows, in pieces of at most one microbatch.

        Raises:
            BatchError: it is not a pair of tensors of equally many rows.
        """
        inputs, targets = _pair(batch, "the batch")
        if len(inputs) != len(targets):
            fact = f"the batch has {len(inputs)} rows of inputs and {len(targets)} of targets"
            raise BatchError(f"{fact}; give as many of both")
        cut = zip(inputs.split(self._rows), targets.split(self._rows), strict=True)
        return [(self._converted(x), self._converted(y)) for x, y in cut]


class BatchFeed(CutBatches):
    """The batches of a run, by step. All ranks of a process share one, so that a generator is read once.

    Args:
        batches: (inputs, targets) of each whole step, equal on all ranks. A list, or another iterable that can begin
            again, is repeated until the steps are done.
        kept: the number of batches that are kept; ranks of one process differ by fewer steps than this.
    """

    def __init__(self, batches: Iterable[Batch], kept: int = 2):
        super().__init__(0, torch.float32)
        self._batches, self._kept = batches, kept
        self._source = iter(batches)
        self._read: dict[int, Batch] = {}
        self._next = 0
        self._lock = threading.Lock()

    def rows_each(self, count: int) -> int:
        """The rows of one microbatch, if the rows of a batch are cut into so many.

        Raises:
            BatchError: the rows of the first batch cannot be cut so.
        """
        rows = len(self.batch(0)[0])
        if count < 1 or rows % count:
            fact = f"a batch of {rows} rows cannot be cut into {count} microbatches"
            raise BatchError(f"{fact}; make its rows a multiple of {max(1, count)}, or choose other microbatches")
        return rows // count

    def cut(self, rows: int, dtype: torch.dtype, kept: int) -> None:
        """Set how batches are cut.

        Args:
            rows, dtype: as in `CutBatches`.
        """
        self._rows, self._dtype, self._kept = rows, dtype, kept

    def skip(self, steps: int) -> None:
        """Skip the batches of steps that an earlier run has done."""
        if steps:
            self.batch(steps - 1)

    def batch(self, step: int) -> Batch:
        """The batch of a step; batches are read in order.

        Raises:
            BatchError: the batches end, or one is not a pair of tensors with as many rows as the first.
        """
        with self._lock:
            while self._next <= step:
                self._read[self._next] = self._checked(self._following())
                self._read.pop(self._next - self._kept, None)
                self._next += 1
            return self._read[step]

    def _following(self) -> Batch:
        for batch in islice(self._source, 1):
            return batch
        again = iter(self._batches)
        if again is not self._source and self._next:
            self._source = again
            for batch in islice(self._source, 1):
                return batch
        fact = f"the batches end after step {self._next}"
        raise BatchError(f"{fact}; train fewer steps, or give a list or a loader, which can begin again")

    def _checked(self, batch: object) -> Batch:
        inputs, targets = _pair(batch, f"batch {self._next}")
        first = len(self._read[min(self._read)][0]) if self._read else len(inputs)
        if not len(inputs) == len(targets) == first:
            fact = (
                f"batch {self._next} has {len(inputs)} rows of inputs and {len(targets)} of targets (batch 0: {first})"
            )
            raise BatchError(f"{fact}; give every step as many rows, for example with drop_last=True")
        return inputs, targets


def _pair(batch: object, name: str) -> Batch:
    """A batch as (inputs, targets), each a tensor with rows."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        inputs, targets = batch
        if all(isinstance(one, torch.Tensor) and one.dim() for one in (inputs, targets)):
            return inputs, targets
    fact = f"{name} is not a pair (inputs, targets) of tensors, but {_described(batch)}"
    raise BatchError(f"{fact}; give two tensors with as many rows each")


def _described(batch: object) -> str:
    if isinstance(batch, tuple | list):
        return f"a {type(batch).__name__} of {', '.join(type(one).__name__ for one in batch) or 'nothing'}"
    return f"a {type(batch).__name__}"
