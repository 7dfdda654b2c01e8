"""Accumulation of the gradients of a step's microbatches into its sums: the interface, and the plain way.

A trainer has one accumulation. Its stages call it around each backward, the step around the schedule, and checkpoints
save what it keeps.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from pipelined.training.sums.bucket import Bucket


class Accumulation:
    """Autograd adds the gradient of each microbatch to the buckets, in the order of the backwards; nothing is kept."""

    @property
    def agreed_numbers(self) -> int:
        """Numbers on which all ranks agree in a step, besides its totals."""
        return 0

    def require(self, stage: int, running_statistics: bool) -> None:
        """Refuse a stage that this accumulation cannot serve.

        Args:
            running_statistics: whether a norm of the stage keeps them.
        Raises:
            UsageError: it cannot.
        """

    def begin_backward(self, outputs: Iterable[torch.Tensor]) -> None:
        """Prepare the graph of one microbatch, of which these are the outputs, before its backward."""

    @contextmanager
    def without_weights(self) -> Iterator[None]:
        """Inside the `with` block gradients of parameters may be computed and dropped; none of them counts."""
        yield

    def collect(self, stage: int) -> None:
        """Take the gradients of one microbatch of a stage, after its backward."""

    async def run(self, compute: Callable[[], Awaitable[None]]) -> None:
        """Run a step's forwards, backwards and all-reduces, until every bucket has the sum of the whole batch.

        Args:
            compute: does all of them once.
        """
        await compute()

    @property
    def square_parts(self) -> int:
        """The numbers that together are the squared norm of a parameter's gradient."""
        return 1

    def squares(self, bucket: Bucket) -> Mapping[str, Sequence[float]]:
        """The squared gradient norm of what this rank updates of each parameter of a bucket, in its parts."""
        return {name: (square,) for name, square in bucket.squares().items()}

    def state_of(self, name: str) -> dict[str, torch.Tensor]:
        """The fields of a checkpoint for one parameter."""
        return {}

    def restore(self, name: str, saved: Mapping[str, torch.Tensor]) -> None:
        """Go on with the fields of `state_of`."""
