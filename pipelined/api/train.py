"""`pipelined.train`: trains a user's model to its end, on as many ranks as the launcher started.

mpirun -n 4 python mine.py        (or torchrun, srun; plain python runs every rank in this process)

The signatures of `train`, `Trainer` and `plan` repeat the keywords that they share, in the same rows, because an editor
then completes and checks them, and `help` shows their defaults; tests hold them equal.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

import torch

from pipelined.api.arranged_job import ArrangedJob
from pipelined.api.arrangement import first_batch, require_ranks, require_rows
from pipelined.api.data.feed import Feed, JobFeed, job_feed, steps_in
from pipelined.api.job_request import JobRequest
from pipelined.api.loop import SavePolicy
from pipelined.api.plan import plan_to_train
from pipelined.api.planning.planned import Planned, as_plan
from pipelined.api.rank_session import RankSession
from pipelined.api.trainer_help import with_help_of_trainer
from pipelined.api.user_optimizer import OptimizerBuilder, SchedulerBuilder
from pipelined.api.whole_run import Trained, WholeRun
from pipelined.errors import FilePath, path_of
from pipelined.process.exit import print_to_stderr
from pipelined.process.launch import Launch
from pipelined.process.loop_thread import outside_of_a_loop
from pipelined.process.run import run_or_raise
from pipelined.process.stop_request import StopRequest
from pipelined.process.uncaught import UncaughtErrors
from pipelined.programs.plan import Plan
from pipelined.programs.staleness import steps_to_fill
from pipelined.schedules import KnobValue, SomeSchedule
from pipelined.training.exchange.compression import NONE
from pipelined.training.models.batch import Batch
from pipelined.training.models.sequential import Loss
from pipelined.training.models.split.split_row import SplitRow
from pipelined.training.models.user_model import Layers
from pipelined.training.segments.step_report import StepReport
from transports import Transport


@with_help_of_trainer
def train(
    model: Layers, batches: Iterable[Batch] | Feed, *, loss: Loss, optimizer: OptimizerBuilder,
    steps: int | None = None, plan: Plan | Planned | None = None, schedule: SomeSchedule | None = None,
    depth: int | None = None, width: int | None = None, microbatches: int | None = None,
    tensor: int | str = 1, layout: str | None = None, recompute: bool | None = None, compile: bool = False,
    dtype: torch.dtype = torch.float32, autocast: bool | torch.dtype = False, seed: int = 0,
    clip: float = 0.0, lr_scheduler: SchedulerBuilder | None = None,
    all_reduce: str = "auto", exact_sums: bool = False, compress: str = NONE,
    shard_optimizer: bool = False, offload_optimizer: bool = False,
    delayed_update: bool = False, masters: torch.dtype | None = None,
    transport: str = "auto", share_devices: bool = False,
    checkpoint: FilePath | None = None, save_every: int = 0, async_save: bool = False, keep: int = 2,
    resume: FilePath | None = None, export: FilePath | None = None,
    report: Callable[[StepReport], object] = lambda report: None, **knobs: KnobValue,
) -> Trained:  # fmt: skip
    """Train a model cut into stages over ranks, which all call this with equal arguments; return when all are done.

    Args:
        plan: a `Plan`, or the result of `pipelined.plan`, in place of schedule and sizes.
        batches: (inputs, targets) of each whole step, equal on all ranks, repeated if they can be; or a `Feed`.
        schedule: a name, a .py file or .csv table, or a class, function or module of your own; default: one_f_one_b.
            "auto" finds the fastest arrangement as `pipelined.plan` does, with what is given besides, and trains by it.
        depth: the stages of a pipeline; default: one for each rank of it, or two where the schedule needs two.
        width: pipelines in parallel, each on its own microbatches; default: 1, or with `tensor` as many as can be.
        microbatches: of one pipeline in a step; default: twice the depth.
        steps: steps to train; default: `len(batches)`.
        tensor: the ranks of a worker, which compute each layer together; "auto" plans them; see docs/teams.md.
        checkpoint, keep: the directory to save in, at the end and on a stop request; the checkpoints that stay there.
        save_every: save after each multiple of this number of steps, too; 0: only at the end.
        async_save: write checkpoints before the last one while training continues.
        resume: a checkpoint, or a directory of checkpoints, to continue from.
        export: the file for the trained state, written one tensor after another; None: rank 0 gathers the state.
        report: called on rank 0 with the report of each step.
        knobs: further settings that the schedule declares, such as `pipes=4`; see docs/schedules.md.
    Returns: losses and state, see `Trained`.
    Raises:
        UsageError: on every rank: the caller can correct something.
        JobFailed: on every rank: one failed, and has printed why.
    """
    with UncaughtErrors("pipelined.train", transport):
        request = JobRequest.of_call(
            train, model=model, loss=loss, optimizer=optimizer,
            schedule=schedule, depth=depth, width=width, microbatches=microbatches,
            tensor=tensor, layout=layout, recompute=recompute, compile=compile,
            dtype=dtype, autocast=autocast, seed=seed, clip=clip, lr_scheduler=lr_scheduler,
            all_reduce=all_reduce, exact_sums=exact_sums, compress=compress, shard_optimizer=shard_optimizer,
            offload_optimizer=offload_optimizer, delayed_update=delayed_update, masters=masters,
            transport=transport, share_devices=share_devices, knobs=knobs,
        )  # fmt: skip
        feed = job_feed(batches)
        work = WholeRun(
            job=_arrange(request, plan, feed), feed=feed, report=report,
            steps=steps_in(batches) if steps is None else steps, resume=_path(resume), export=_path(export),
            saves=SavePolicy(_path(checkpoint), save_every, async_save, keep),
        )  # fmt: skip
        return _run(request.launch, work)


def _path(path: FilePath | None) -> Path | None:
    return None if path is None else path_of(path)


def _arrange(request: JobRequest, plan: Plan | Planned | None, feed: JobFeed) -> ArrangedJob:
    """The job by the plan that is given, or found for "auto", or that of the other arguments."""
    arrangement = request.arrangement
    if plan is not None:
        choice = arrangement.require_open(plan)
    elif arrangement.is_planned:
        choice = plan_to_train(request, first_batch(feed))
    else:
        choice = arrangement.plan(request.launch, feed)
    chosen_plan = as_plan(choice)
    require_ranks(chosen_plan, request.launch)
    if plan is not None:
        require_rows(chosen_plan, feed)
    feed.configure(chosen_plan.rows, request.numerics.dtype, cached_steps=2 + steps_to_fill(chosen_plan.shape))
    return request.arrange(choice, feed, feed.inputs(0, 0))


def _run(launch: Launch, work: WholeRun) -> Trained:
    """Run this process's ranks; in a thread of its own where a loop is running already, as in a notebook."""
    if isinstance(work.job.model, SplitRow) and launch.rank == 0:
        print_to_stderr(work.job.model.describe())
    stop = StopRequest.of_rank()
    results = dict[int, Trained]()
    plan = work.job.plan

    async def rank(transport: Transport) -> None:
        async with RankSession.opened(transport, launch, work.job) as session:
            results[transport.rank] = await work.train(session, lambda: stop.requested)

    def start() -> None:
        run_or_raise(launch, plan.world_size, rank, plan.stages_of, "pipelined.train")

    is_main = threading.current_thread() is threading.main_thread()
    with stop.listening() if is_main else nullcontext():
        outside_of_a_loop(start)
    return results[launch.rank]
