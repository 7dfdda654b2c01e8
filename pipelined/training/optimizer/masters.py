"""An optimizer of copies of the parameters, the masters: in host memory, in a wider dtype, or both.

The masters have the newest values; a thread of its own updates them. A step with masters in host memory:

    device thread | … B(stage 1)  B(stage 0) | norm | values ← masters | F(stage 0) …
    host thread   |    gradients of stage 1 ↓         update                                at once

With a delayed update the next step does not wait for it, and its values are used one step later:

    device thread | … B(stage 0) | norm | values of the update before | F(stage 0) …
    host thread   |                       gradients ↓ | update …

Source: Ren et al., ZeRO-Offload: Democratizing Billion-Scale Model Training, 2021, sections 4 and 5.2 (the delayed
parameter update; here from the first step on).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

import torch
from torch import nn

from pipelined.actors.device.executor import Executor
from pipelined.programs.updates.master_rules import require_flush
from pipelined.training.job.description import JobDescription
from pipelined.training.optimizer.config import update
from pipelined.training.optimizer.rank_optimizer import RankOptimizer
from pipelined.training.optimizer.state import VALUE, VERSION_PREFIX
from pipelined.training.sums.bucket import Bucket, clear

IN_USE = f"{VERSION_PREFIX}-1"
"""The field of the value that the next step computes with, where the newest one is of a delayed update."""


class MasterOptimizer(RankOptimizer):
    """Updates masters of a rank's parameters, and copies their values to the parameters.

    Raises:
        PlanError: the schedule has no flush.
    Cost: for each parameter that the rank updates its master and the master's gradient; each value and each gradient is
        copied once a step.
    """

    def __init__(self, job: JobDescription, parameters: Mapping[str, nn.Parameter], executor: Executor):
        numerics, offload = job.numerics, job.numerics.offload_optimizer
        self._delayed, self._dtype = numerics.delayed_update, numerics.masters
        self._device = "cpu" if offload else executor.device
        require_flush(job.plan)
        super().__init__(job, parameters, executor)
        self._thread = executor.thread_beside("masters")
        self._pending: list[Future[None]] = []
        """The work of the thread that was not waited for."""

    async def take_gradient(self, bucket: Bucket) -> None:
        """Copy the gradient while other buckets are still computed; an exact sum is rounded to it later."""
        if bucket.exact is None:
            self._submit(partial(self._copy_gradient, bucket))
            await self.finish_update()

    async def update(self, buckets: Sequence[Bucket], rate: float | None, gradient_scale: float) -> tuple[float, float]:
        """See `RankOptimizer.update`."""
        start = self._executor.clock.now()
        if self._delayed:
            await self.use_values()
        for bucket in (bucket for bucket in buckets if bucket.exact is not None):
            self._submit(partial(self._copy_gradient, bucket))
        await self.finish_update()
        self._submit(lambda: update(self.optimizer, rate, gradient_scale))
        if not self._delayed:
            await self.use_values()
        await self._executor.run("update", partial(clear, buckets))
        return start, self._executor.clock.now()

    def run_after_update(self, work: Callable[[], None]) -> None:
        """See `RankOptimizer.run_after_update`; after an update that is under way."""
        self._submit(work)

    async def finish_update(self) -> None:
        pending, self._pending = self._pending, []
        for work in pending:
            await asyncio.wrap_future(work)

    async def use_values(self) -> None:
        """Wait for the update that is under way, if any, and compute with its values."""
        await self.finish_update()
        await self._executor.run("values", self._copy_values)

    def fields(self, name: str) -> dict[str, torch.Tensor]:
        self._fill([name])
        parameter = self._parameters[name]
        in_use = {IN_USE: parameter.detach()} if self._delayed and parameter.requires_grad else {}
        return {**super().fields(name), **in_use}

    def restore(self, name: str, fields: Mapping[str, torch.Tensor], updates: int) -> None:
        super().restore(name, fields, updates)
        self._unset.discard(name)

    def value_in_use(self, fields: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return fields.get(IN_USE, fields[VALUE]) if self._delayed else fields[VALUE]

    def _copy_parameters(self, parameters: Mapping[str, nn.Parameter]) -> Mapping[str, nn.Parameter]:
        """The masters, and frozen parameters themselves.

        Masters get their values anew before they are first used: weights of a file are set later.
        """
        trained = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        self._unset = set(trained)
        masters = {name: value.detach().to(self._device, self._dtype, copy=True) for name, value in trained.items()}
        return {**parameters, **{name: nn.Parameter(master) for name, master in masters.items()}}

    def _fill(self, names: Iterable[str]) -> None:
        with torch.no_grad():
            for name in self._unset.intersection(names):
                self.updated[name].copy_(self._parameters[name])
        self._unset.difference_update(names)

    def _copy_gradient(self, bucket: Bucket) -> None:
        self._fill(bucket.updated)
        for name, parameter in bucket.updated.items():
            assert parameter.grad is not None  # it is a view of the bucket's gradient
            master = self.updated[name]
            master.grad = torch.empty_like(master) if master.grad is None else master.grad
            master.grad.copy_(parameter.grad)

    @torch.no_grad()
    def _copy_values(self) -> None:
        for name, parameter in self._parameters.items():
            if parameter.requires_grad and name not in self._unset:
                parameter.copy_(self.updated[name])

    def _submit(self, work: Callable[[], None]) -> None:
        def run_work() -> None:
            with self._executor.doing("the update of masters"):
                work()

        self._pending.append(self._thread.submit(run_work))
