"""Batches of whole steps, each cut into microbatches: a run's own, or those of a user's loop.

The rows of a batch are cut in order: microbatch 0 has the first ones.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from itertools import islice

import torch

from pipelined.errors import user_code
from pipelined.programs.plan import Plan
from pipelined.training.digests import tree_digest
from pipelined.training.exchange.parcels import Tree
from pipelined.training.models.batch import (
    Batch,
    BatchError,
    convert_floats,
    require_batches,
    rows_of_batch,
    slice_rows,
)


class CutBatches(ABC):
    """Batches by step, each cut into microbatches of equal size.

    Args:
        rows: the rows of one microbatch.
        dtype: floating-point inputs and targets are converted to it.
    """

    def __init__(self, rows: int, dtype: torch.dtype):
        self._rows, self._dtype = rows, dtype

    @abstractmethod
    def whole_batch(self, step: int) -> Batch:
        """The batch of a step, inputs and targets."""

    def inputs(self, step: int, microbatch: int) -> Tree:
        return self._cut_microbatch(self.whole_batch(step)[0], microbatch)

    def targets(self, step: int, microbatch: int) -> Tree:
        return self._cut_microbatch(self.whole_batch(step)[1], microbatch)

    def digests(self, step: int) -> dict[str, bytes]:
        """A digest of the inputs and one of the targets of a step, which must be equal on all ranks."""
        return dict(zip(("inputs", "targets"), map(tree_digest, self.whole_batch(step)), strict=True))

    def _cut_microbatch(self, tree: Tree, microbatch: int) -> Tree:
        return convert_floats(slice_rows(tree, microbatch * self._rows, self._rows), self._dtype)


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
            BatchError: it is not a pair, or has other rows than a step of the plan.
        """
        rows = rows_of_batch(batch, "the batch")
        if rows != self._all_rows:
            fact = f"the batch has {rows} rows (a step of the plan: {self._all_rows})"
            raise BatchError(f"{fact}; give as many, or choose another plan")

    def give(self, step: int, batch: Batch) -> None:
        """Set the batch of a step; every rank of the process gives the same one, and may be a step behind another."""
        self._batches = {n: self._batches[n] for n in self._batches if n >= step - 1} | {step: batch}

    def whole_batch(self, step: int) -> Batch:
        return self._batches[step]

    def windows(self, batches: Iterable[Batch]) -> list[Batch]:
        """Batches of any number of rows, in pieces of at most one microbatch.

        Raises:
            BatchError: there is no row, or a batch is not a pair with as many rows each.
        """
        require_batches(batches)
        pieces = [
            convert_floats(slice_rows(batch, start, self._rows), self._dtype)
            for batch in batches
            for start in range(0, rows_of_batch(batch, "the batch"), self._rows)
        ]
        if not pieces:
            raise BatchError("there are no rows to evaluate (batches: empty); give at least one (inputs, targets)")
        return pieces


class BatchFeed(CutBatches):
    """The batches of a run, by step. All ranks of a process share one, so that a generator is read once.

    Args:
        batches: (inputs, targets) of each whole step, equal on all ranks. A list, or another iterable that can begin
            again, is repeated until the steps are done.
        cached_steps: the steps whose batches stay in memory; ranks of one process differ by fewer.
    """

    def __init__(self, batches: Iterable[Batch], cached_steps: int = 2):
        super().__init__(0, torch.float32)
        self._batches, self._cached_steps = batches, cached_steps
        self._source = iter(batches)
        self._cached_batches: dict[int, Batch] = {}
        self._next_step, self._first_rows = 0, 0
        self._error: BatchError | None = None
        self._lock = threading.Lock()

    def rows_each(self, count: int) -> int:
        """The rows of one microbatch, if the rows of a batch are cut into `count` parts.

        Raises:
            BatchError: the rows of the first batch cannot be cut so.
        """
        self.whole_batch(0)
        rows = self._first_rows
        if count < 1 or rows % count:
            fact = f"a batch of {rows} rows cannot be cut into {count} microbatches"
            raise BatchError(f"{fact}; make its rows a multiple of {max(1, count)}, or choose other microbatches")
        return rows // count

    def with_batch_size(self, plan: Plan) -> Plan:
        """See `JobFeed.with_batch_size`: the plan itself, as whole batches are cut as it says."""
        return plan

    def configure(self, rows: int, dtype: torch.dtype, cached_steps: int) -> None:
        """Set how batches are cut.

        Args:
            rows, dtype: as in `CutBatches`.
        """
        self._rows, self._dtype, self._cached_steps = rows, dtype, cached_steps

    def skip(self, steps: int) -> None:
        """Skip the batches of steps that an earlier run has done."""
        if steps:
            self.whole_batch(steps - 1)

    def prepare(self, step: int) -> None:
        """Read the batch of a step, so that it is there when microbatches of it are requested."""
        self.whole_batch(step)

    def whole_batch(self, step: int) -> Batch:
        """The batch of a step; batches are read in order.

        Raises:
            BatchError: the batches end, or one is not a pair of tensors with as many rows as the first.
        """
        with self._lock:
            if self._error:  # a generator that raised ends for the next rank, as if it had no more
                raise self._error
            try:
                self._read_until(step)
            except BatchError as error:
                self._error = error
                raise
            return self._cached_batches[step]

    def _read_until(self, step: int) -> None:
        while self._next_step <= step:
            self._cached_batches[self._next_step] = self._check_rows(self._take_batch())
            self._cached_batches.pop(self._next_step - self._cached_steps, None)
            self._next_step += 1

    def _take_batch(self) -> Batch:
        remedy = "correct what gives the batches, or train fewer steps"
        with user_code(f"`batches` at step {self._next_step}", remedy, BatchError):
            for batch in islice(self._source, 1):
                return batch
            restarted_source = iter(self._batches)
            if restarted_source is not self._source and self._next_step:
                self._source = restarted_source
                for batch in islice(self._source, 1):
                    return batch
        if not self._next_step:
            raise BatchError("the batches are empty; give at least one (inputs, targets)")
        fact = f"the batches end after step {self._next_step}"
        raise BatchError(f"{fact}; train fewer steps, or give a list or a loader, which can begin again")

    def _check_rows(self, batch: Batch) -> Batch:
        rows = rows_of_batch(batch, f"batch {self._next_step}")
        self._first_rows = self._first_rows or rows
        if rows != self._first_rows:
            fact = f"batch {self._next_step} has {rows} rows (batch 0: {self._first_rows})"
            raise BatchError(f"{fact}; give every step as many rows, for example with drop_last=True")
        return batch
