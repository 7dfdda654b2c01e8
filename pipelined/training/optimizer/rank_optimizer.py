"""The optimizer of what one rank updates: in place, where the parameters are."""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from pipelined.actors.device.executor import Executor
from pipelined.training.job.description import JobDescription
from pipelined.training.optimizer.config import update
from pipelined.training.optimizer.state import VALUE, OptimizerState
from pipelined.training.sums.bucket import Bucket, clear


class RankOptimizer:
    """Updates a rank's parameters in place, on the device of the rank.

    Args:
        job: has the settings of the optimizer.
        parameters: what the rank updates, by name; frozen parameters too.
        executor: runs the computations of the rank.

    Attributes:
        updated: the tensors that torch's `optimizer` updates, by name; `state` is what it keeps of them.
    """

    def __init__(self, job: JobDescription, parameters: Mapping[str, nn.Parameter], executor: Executor):
        self._executor, self._parameters = executor, parameters
        self.updated = self._copy_parameters(parameters)
        self.optimizer = job.optimizer_settings.build(self.updated)
        self.state = OptimizerState.of(self.optimizer)

    async def take_gradient(self, bucket: Bucket) -> None:
        """Take the gradient of a bucket, which is summed; other buckets may still be computed."""

    async def update(self, buckets: Sequence[Bucket], rate: float | None, gradient_scale: float) -> tuple[float, float]:
        """One update by the gradients of these buckets, which are cleared; see `update`.

        Returns: its start and end, on the device.
        """

        def work() -> None:
            update(self.optimizer, rate, gradient_scale)
            clear(buckets)

        return (await self._executor.run("update", work))[1:]

    def run_after_update(self, work: Callable[[], None]) -> None:
        """Do some work after the last update, such as a step of a scheduler of the learning rate."""
        work()

    async def finish_update(self) -> None:
        """Wait until no update is under way: `fields` and `restore` need that."""

    async def use_values(self) -> None:
        """Compute with the newest values, as the parameters have them in place."""

    def fields(self, name: str) -> dict[str, torch.Tensor]:
        """What a checkpoint saves of a parameter."""
        return self.state.fields(self.updated[name])

    def restore(self, name: str, fields: Mapping[str, torch.Tensor], updates: int) -> None:
        """Restore the result of `fields`, saved after this many updates."""
        self.state.restore(self.updated[name], fields, updates)

    def value_in_use(self, fields: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The value that the next step computes with, from what a checkpoint saved of a parameter."""
        return fields[VALUE]

    def _copy_parameters(self, parameters: Mapping[str, nn.Parameter]) -> Mapping[str, nn.Parameter]:
        """The tensors that are updated."""
        return parameters
