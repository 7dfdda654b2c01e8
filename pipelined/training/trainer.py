"""The trainer of one rank: it builds the stages and trains steps.

A step is: run the schedule, finish the gradient sums, agree on norm and loss, update. The code is the same on one rank
and on sixty-four.
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from collectives import Group, all_reduce
from pipelined.actors.actor import Actor
from pipelined.actors.agree import AgreedError, agree
from pipelined.actors.executor import Device
from pipelined.programs.bucket_names import Stages
from pipelined.programs.gradient_sync import GradientSync
from pipelined.programs.plan import Plan
from pipelined.programs.prepare import Prepared, prepare
from pipelined.programs.step_totals import StepTotals
from pipelined.traces.file import Tracer
from pipelined.training.compression import NONE, Compression
from pipelined.training.equal_replicas import require_equal_replicas
from pipelined.training.gradient_sums import GradientSums
from pipelined.training.model import Model
from pipelined.training.optimizer import OptimizerConfig, restore, state_of, update
from pipelined.training.parameters import LocalParameters, build_local
from pipelined.training.replay import Order, follow_order
from pipelined.training.stage import Stage
from pipelined.training.worker import Feed, RankContext, TrainWorker

WORLD_CHANNEL = 0
"""The channel of sums over all ranks; the channels of buckets follow it."""


@dataclass(frozen=True)
class Numerics:
    """Dtypes, recomputation, and the algorithms that affect the numbers of a run.

    Args:
        dtype: the dtype of parameters, activations and sums.
        autocast: bfloat16 inside the forward.
        recompute: keep only the inputs and run each forward again before its backward.
        all_reduce: an algorithm of `collectives.all_reduce`, or "auto".
        compress: the codec for activations and gradients between stages, or "none".
    """

    dtype: torch.dtype = torch.float32
    autocast: bool = False
    recompute: bool = False
    all_reduce: str = "auto"
    compress: str = NONE


@dataclass(frozen=True)
class StepReport:
    """The results of a step; the same on every rank except the seconds.

    Args:
        grad_norm: the global gradient norm; without a flush the root mean square over the step's updates.
        staleness: without a flush, for each stage: the updates between the weights at which a gradient was computed
            and the weights to which it was applied; the mean over the step's microbatches.
    """

    step: int
    loss: float
    grad_norm: float
    lr: float
    step_s: float
    idle_fraction: float
    stop: bool
    staleness: tuple[float, ...] = ()

    @property
    def is_finite(self) -> bool:
        """Whether loss and norm are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def check_finite(step: int, loss: float, norm: float) -> None:
    """Refuse a step if its loss or norm is not finite: later steps would not be finite either, and would be saved.

    Raises:
        AgreedError: on every rank, because all ranks have the same numbers.
    """
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise AgreedError(
            f"step {step + 1} came to no finite numbers (loss: {loss}, gradient norm: {norm}): training has diverged; "
            "lower the learning rate, or warm up for longer, and go on from what was saved before"
        )


class Trainer:
    """One rank of a training job.

    Args:
        actor: the rank's mailbox, open.
        model: the description of the whole model; only this rank's layers are built.
        plan: the job's arrangement; its world size must equal the transport's.
        optimizer_config: the settings of the optimizer.
        device: runs the computations.
        place: the torch device of this rank.
        feed: the data.
        sequence: tokens per sequence.
        seed: the seed of initial values and dropout.
        fresh: whether to set initial values; False leaves them unset, to be loaded.
        orders: the instructions of this rank in each step, used instead of its schedule; a missing step follows the
            last order. Without a flush there is one order for all steps, under the first.
    """

    def __init__(
        self,
        actor: Actor,
        model: Model,
        plan: Plan,
        optimizer_config: OptimizerConfig,
        numerics: Numerics,
        device: Device,
        place: torch.device,
        feed: Feed,
        tracer: Tracer,
        sequence: int,
        seed: int,
        fresh: bool = True,
        orders: Mapping[int, Order] | None = None,
    ):
        self.model, self.plan, self.optimizer_config, self.numerics = model, plan, optimizer_config, numerics
        self.local: LocalParameters = build_local(
            model,
            plan,
            actor.rank,
            sequence=sequence,
            dtype=numerics.dtype,
            device=place,
            seed=seed if fresh else None,
        )
        stages = {
            index: Stage(model, module, index, plan.depth, place, numerics.autocast, numerics.recompute)
            for index, module in self.local.modules.items()
        }
        compression = Compression(actor, numerics.compress, tracer)
        self.context = RankContext(actor, plan, stages, device, feed, tracer, seed, compression)
        self.optimizer = optimizer_config.build(self.local.parameters)
        self.world = Group(actor.transport, tuple(range(plan.world_size)), WORLD_CHANNEL)
        self.sums = GradientSums(self._bucket_groups(), numerics.all_reduce, tracer)
        self._orders = orders or {}
        self._prepared: Prepared | None = None

    async def step(self, step: int, stopping: Callable[[], bool] = lambda: False) -> StepReport:
        """Train one step.

        Args:
            step: the step, from 0; it selects the data, the random numbers and the learning rate.
            stopping: whether this rank received a stop request; called at the step's end. The report tells all ranks.
        Raises:
            AgreedError: loss or norm is not finite; nothing is updated.
        """
        clock, device = self.context.device.clock, self.context.device
        start, busy = clock.now(), device.busy
        losses = await self._gradients(step)
        squares, _, _ = await device.run("norm", self.local.squares)
        entry = self._totals.entry(squares, losses, device.busy - busy, stopping())
        with self.context.tracer.span("all_reduce", "ledger", step=step):
            await all_reduce(self.world, entry)
        loss, norm, rate = self._totals.loss(entry), self._totals.norm(entry), self.optimizer_config.rate(step)
        check_finite(step, loss, norm)
        await self._update(step, rate, self.optimizer_config.shrink(norm))
        seconds = clock.now() - start
        idle = max(0.0, 1.0 - self._totals.busy(entry) / seconds)
        return StepReport(step, loss, norm, rate, seconds, idle, self._totals.stop(entry))

    def state_of(self, name: str) -> dict[str, torch.Tensor]:
        """The tensors that a checkpoint saves for a parameter or a buffer."""
        if name in self.local.kept:
            return {"value": self.local.kept[name]}
        return state_of(self.optimizer, self.local.parameters[name])

    def restore(self, state: Mapping[str, Mapping[str, torch.Tensor]], updates: int) -> None:
        """Restore the results of `state_of` for every tensor held, saved after `updates` updates."""
        for name, parameter in self.local.parameters.items():
            restore(self.optimizer, parameter, state[name], updates)
        with torch.no_grad():
            for name, buffer in self.local.kept.items():
                buffer.copy_(state[name]["value"])

    async def _gradients(self, step: int) -> dict[int, float]:
        """Run the schedule; afterwards every bucket holds its sum over all holders."""
        context = self.context
        if self._prepared is None:
            await require_equal_replicas(context.actor.transport, self.local)
            self._prepared = await asyncio.to_thread(prepare, self.plan, context.worker)
            await self._ready_sums()
            await self.sums.place(self.local.buckets)
        sync = GradientSync(context.actor, self.local.buckets, self.sums.sum, self._prepared.overlapped, context.stages)
        order = self._orders.get(step, self._orders[max(self._orders)]) if self._orders else None
        worker = TrainWorker(context, step, sync, order or self._prepared.instructions)
        await (follow_order(worker, order) if order else self._prepared.schedule.schedule(worker))
        await sync.finish()
        return worker.losses

    async def _update(self, step: int, rate: float, shrink: float) -> None:
        def work() -> None:
            update(self.optimizer, rate, shrink)
            self.local.clear_gradients()

        _, start, end = await self.context.device.run("step", work)
        self.context.tracer.record("step", "step", start, end, (step, -1, -1, -1))

    async def _ready_sums(self) -> None:
        """Prepare the gradient sums, or refuse an algorithm that the transport does not support."""
        await agree(self.context.actor.transport, "sums", self.sums.ready())

    def _bucket_groups(self) -> dict[Stages, Group]:
        transport, channels = self.context.actor.transport, self.local.channels
        return {
            b.stages: Group(transport, b.holders, WORLD_CHANNEL + 1 + channels[b.stages]) for b in self.local.buckets
        }

    @cached_property
    def _totals(self) -> StepTotals:
        return StepTotals(self.local.names, self.plan.total_microbatches)
