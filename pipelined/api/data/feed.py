"""The data of a job as its ranks read it: microbatches cut from whole batches, or those that a user gives."""

from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, replace
from typing import Protocol, cast

import torch

from pipelined.api.data.batches import BatchFeed
from pipelined.errors import UsageError, user_code
from pipelined.programs.plan import Plan
from pipelined.training.exchange.parcels import Tree
from pipelined.training.models.batch import Batch, BatchError, convert_floats, require_batches, rows_of

REMEDY = "let it give every microbatch of every step, or train fewer steps"


@dataclass(frozen=True)
class Feed:
    """Data by microbatch, for batches that no rank should hold whole.

    Args:
        inputs: (step, microbatch) to the inputs of one microbatch; called on the ranks that hold the first stage, and
            everywhere for the first microbatch of the first step, to measure the model.
        targets: (step, microbatch) to its targets; called on the ranks that hold the last stage.

    The microbatches of a step are numbered from 0, over all pipelines. A call may be repeated, and gives the same then.
    Every microbatch has the rows of the first one.
    """

    inputs: Callable[[int, int], Tree]
    targets: Callable[[int, int], Tree]


class RankFeed(Protocol):
    """The microbatches of a job, from which each rank reads those that it computes."""

    def inputs(self, step: int, microbatch: int) -> Tree:
        """The inputs of a microbatch, numbered over all pipelines."""

    def targets(self, step: int, microbatch: int) -> Tree:
        """Its targets."""

    def digests(self, step: int) -> dict[str, bytes]:
        """Digests, by name, of what must be equal on all ranks in a step."""


class JobFeed(RankFeed, Protocol):
    """The microbatches of a whole run. All ranks of a process share one."""

    def rows_each(self, count: int) -> int:
        """The rows of one microbatch, if a step has `count`. Raises BatchError: no microbatch has such rows."""

    def with_batch_size(self, plan: Plan) -> Plan:
        """A plan of `rows_each` rows a microbatch, with the rows that one has before the schedule cuts it."""

    def configure(self, rows: int, dtype: torch.dtype, cached_steps: int) -> None:
        """Set how microbatches are made.

        Args:
            rows: of each.
            dtype: floating-point inputs and targets are converted to it.
            cached_steps: the steps whose batches stay in memory; ranks of one process differ by fewer.
        """

    def skip(self, steps: int) -> None:
        """Skip the data of steps that an earlier run has done."""

    def prepare(self, step: int) -> None:
        """Read the data of a step, so that it is there when microbatches of it are requested."""

    def whole_batch(self, step: int) -> Batch | None:
        """The batch of a step; None where no rank has it whole."""


def job_feed(batches: Iterable[Batch] | Feed, cached_steps: int = 2) -> JobFeed:
    """The data that a user gives, in either form.

    Args:
        cached_steps: the steps whose batches stay in memory.
    Raises:
        BatchError: it is in neither form.
    """
    if isinstance(batches, Feed):
        return MicrobatchFeed(batches)
    require_batches(batches, ", or a pp.Feed")
    return BatchFeed(batches, cached_steps)


def steps_in(batches: Iterable[Batch] | Feed) -> int:
    """The steps that the batches last. Raises UsageError: they do not tell, as a loader of an `IterableDataset`."""
    try:
        return len(cast(Sized, batches))
    except TypeError as error:
        raise UsageError("the batches have no length, so the number of steps is unknown; give steps=") from error


class MicrobatchFeed:
    """The microbatches of a user's `Feed`, checked. Every call of the feed names the step, so it reads nothing ahead.

    Args:
        feed: gives the microbatches.
    """

    def __init__(self, feed: Feed):
        self._feed = feed
        self._rows = 0
        self._dtype = torch.float32

    def rows_each(self, count: int) -> int:
        """The rows of one microbatch, whatever their number."""
        return rows_of(*self._read("inputs", 0, 0))

    def with_batch_size(self, plan: Plan) -> Plan:
        """See `JobFeed.with_batch_size`: what the feed gives is one microbatch of the schedule, which cuts none."""
        return replace(plan, microbatch_size=self.rows_each(plan.total_microbatches) * plan.stage_map.pieces)

    def configure(self, rows: int, dtype: torch.dtype, cached_steps: int) -> None:
        """See `JobFeed.configure`; nothing is kept."""
        self._rows, self._dtype = rows, dtype

    def skip(self, steps: int) -> None:
        """See `JobFeed.skip`; nothing was read."""

    def prepare(self, step: int) -> None:
        """See `JobFeed.prepare`; a microbatch is read when it is computed."""

    def whole_batch(self, step: int) -> None:
        """See `JobFeed.whole_batch`; no rank has one."""

    def digests(self, step: int) -> dict[str, bytes]:
        """See `RankFeed.digests`; a rank reads the microbatches that it computes, and no other."""
        return {}

    def inputs(self, step: int, microbatch: int) -> Tree:
        return self._read_rows("inputs", step, microbatch)

    def targets(self, step: int, microbatch: int) -> Tree:
        return self._read_rows("targets", step, microbatch)

    def _read_rows(self, part: str, step: int, microbatch: int) -> Tree:
        tree, name = self._read(part, step, microbatch)
        if (rows := rows_of(tree, name)) != self._rows:
            raise BatchError(f"{name} has {rows} rows (the first one: {self._rows}); give every microbatch as many")
        return convert_floats(tree, self._dtype)

    def _read(self, part: str, step: int, microbatch: int) -> tuple[Tree, str]:
        """What a function of the feed gives for a microbatch, and its name in errors."""
        purpose = f"for microbatch {microbatch} of step {step}"
        with user_code(f"`{part}` of the Feed {purpose}", REMEDY, BatchError):
            return getattr(self._feed, part)(step, microbatch), f"`{part}` {purpose}"
