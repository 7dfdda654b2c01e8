"""`pipelined.plan`: the fastest arrangement of a user's own layers, measured or at a stated speed."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from collectives import Links
from pipelined.api.job_request import JobRequest
from pipelined.api.laboratory.described import machine_of
from pipelined.api.planning.planned import Planned
from pipelined.api.planning.run_planner import run_planner, stated_costs
from pipelined.api.planning.split_row_model import SplitRowModel
from pipelined.api.trainer_help import with_help_of_trainer
from pipelined.api.user_optimizer import OptimizerBuilder
from pipelined.planner.request import PlanRequest
from pipelined.process.loop_thread import outside_of_a_loop
from pipelined.process.reporting.progress import Say, say_nothing
from pipelined.process.uncaught import UncaughtErrors
from pipelined.schedules import KnobValue, SomeSchedule
from pipelined.training.exchange.compression import NONE
from pipelined.training.exchange.parcels import tensors_of
from pipelined.training.models.batch import Batch
from pipelined.training.models.sequential import Loss
from pipelined.training.models.user_model import Layers, bind

COMMAND = "pipelined.plan"


@with_help_of_trainer
def plan(
    model: Layers, batch: Batch, *, ranks: int | None = None,
    loss: Loss | None = None, optimizer: OptimizerBuilder = torch.optim.AdamW, schedule: SomeSchedule | None = None,
    depth: int | None = None, width: int | None = None, microbatches: int | None = None,
    tensor: int | str = 1, layout: str | None = None, recompute: bool | None = None, compile: bool = False,
    dtype: torch.dtype = torch.float32, autocast: bool | torch.dtype = False, seed: int = 0,
    all_reduce: str = "auto", exact_sums: bool = False, compress: str = NONE,
    shard_optimizer: bool = False, offload_optimizer: bool = False,
    delayed_update: bool = False, masters: torch.dtype | None = None,
    transport: str = "auto", share_devices: bool = False,
    costs: Mapping[str, float] | None = None, memory_limit: float | None = None,
    links: Mapping[str, float] | None = None, far: Mapping[str, float] | None = None, node: int = 0, cores: int = 0,
    stale: bool = False, tries: int | None = None, progress: Say = say_nothing, **knobs: KnobValue,
) -> Planned:  # fmt: skip
    """Find the fastest arrangement of a model: measure this machine, search by simulation, and try the best.

    Every rank calls this with equal arguments and gets the same plan. Operations and sizes come from one forward on the
    meta device and one update of each layer; seconds come from timed stages, or from `costs`.

    Args:
        optimizer: builds an optimizer of torch from a list of parameters; its state is measured, its update timed.
        batch: (inputs, targets) of a whole step.
        ranks: the ranks to plan for; default: those that were started.
        loss: the mean loss of one microbatch, or (sum, count); default: the mean of the outputs.
        schedule, depth, width, microbatches, recompute: what the plan must have; default: open.
        tensor, layout: the ranks of a worker, and how they split every layer; "auto": any. See docs/teams.md.
        costs: do not measure: flops (floating-point operations a rank makes a second), overhead (seconds an
            instruction; 0) and coding (seconds a byte of a message spends in the codec; 0).
        links, far, node, cores: the machine, as in `simulate`; links between ranks where they are not measured.
        memory_limit: bytes of a rank; default: its share of this machine's memory.
        stale: look at schedules without a flush, too, which are not exact, unless there are masters.
        tries: plans to try with real steps; default: 3 if it measures on as many ranks as it plans for, else 0.
        progress: called on rank 0 with a line as the work goes on.
        knobs: settings of the schedule that the plan must have, such as `pipes=4`.
    Raises:
        UsageError: the layers do not chain, no plan fits the memory, or none has what it must have.
        JobFailed: on every rank: one failed, and has printed why.
    Cost: some seconds for a small model where it is measured.
    """
    with UncaughtErrors(COMMAND, transport):
        request = JobRequest.of_call(
            plan, model=model, loss=loss or _mean, optimizer=optimizer,
            schedule=schedule, depth=depth, width=width, microbatches=microbatches,
            tensor=tensor, layout=layout, recompute=recompute, compile=compile,
            dtype=dtype, autocast=autocast, seed=seed,
            all_reduce=all_reduce, exact_sums=exact_sums, compress=compress, shard_optimizer=shard_optimizer,
            offload_optimizer=offload_optimizer, delayed_update=delayed_update, masters=masters,
            transport=transport, share_devices=share_devices, knobs=knobs,
        )  # fmt: skip
        row = _row_to_plan(request, batch)
        plan_request = PlanRequest(
            ranks=(request.launch.world_size or 1) if ranks is None else ranks,
            costs=None if costs is None else stated_costs(costs, row.operations, row.sequence, compress),
            machine=machine_of(links, far, node=node, cores=cores, unstated=Links()),
            memory_limit=memory_limit, without_flush=stale, tries=tries,
        )  # fmt: skip
        return outside_of_a_loop(partial(run_planner, row, request.launch, plan_request, progress, COMMAND))


def plan_to_train(request: JobRequest, batch: Batch) -> Planned:
    """The fastest arrangement of a job that is trained by it at once, on the ranks that were started.

    Args:
        batch: of a whole step.
    Raises: as `plan`.
    """
    row = _row_to_plan(request, batch)
    ranks = request.arrangement.ranks(request.launch)
    plan_request = PlanRequest(ranks, None, machine_of(None, None, unstated=Links()))
    return outside_of_a_loop(partial(run_planner, row, request.launch, plan_request, say_nothing, COMMAND))


def _row_to_plan(request: JobRequest, batch: Batch) -> SplitRowModel:
    """The model of a request, as the planner takes it. Raises as `bind` and `RequestedArrangement.fixed_settings`."""
    model = bind(request.model, request.loss, request.seed, batch[0])
    fixed_settings = request.arrangement.fixed_settings(request.numerics)
    return SplitRowModel(model, batch, request.make_settings().make, request.numerics, fixed_settings)


def _mean(output: Any, targets: torch.Tensor) -> torch.Tensor:
    """A loss for timing: the mean of every tensor of the output."""
    return torch.stack([tensor.float().mean() for tensor in tensors_of(output) if tensor.is_floating_point()]).sum()
