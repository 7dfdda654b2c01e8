"""`pipelined.train`: trains a user's model to its end, on as many ranks as the launcher started.

mpirun -n 4 python mine.py        (or torchrun, srun; plain python runs every rank in this process)
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sized
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from pipelined.api.batch import Batch
from pipelined.api.feed import BatchFeed, Feed, MicrobatchFeed
from pipelined.api.laboratory.planning import Planned
from pipelined.api.rank import RankSession, TrainingJob
from pipelined.api.sequential import Loss
from pipelined.api.user_model import Layers, bind
from pipelined.api.user_optimizer import OptimizerBuilder, UserOptimizer
from pipelined.api.whole_run import Trained, WholeRun
from pipelined.errors import UsageError
from pipelined.process.launch import AGENT, ALONE, Launch, detect
from pipelined.process.run import outside_of_a_loop, refuse, run
from pipelined.process.stop_request import StopRequest
from pipelined.programs.plan import Plan, PlanError
from pipelined.programs.staleness import steps_to_fill
from pipelined.schedules import default_depth, require_knobs
from pipelined.schedules.knobs import Value
from pipelined.schedules.own import SomeSchedule, name_of
from pipelined.training.compression import NONE
from pipelined.training.step_report import StepReport
from pipelined.training.trainer import Numerics
from transports import Transport


def train(
    model: Layers,
    batches: Iterable[Batch] | Feed,
    *,
    loss: Loss,
    optimizer: OptimizerBuilder,
    plan: Planned | None = None,
    schedule: SomeSchedule | None = None,
    depth: int | None = None,
    width: int | None = None,
    microbatches: int | None = None,
    steps: int | None = None,
    dtype: torch.dtype = torch.float32,
    autocast: bool = False,
    recompute: bool | None = None,
    seed: int = 0,
    clip: float = 0.0,
    lr_scheduler: Callable[[torch.optim.Optimizer], LRScheduler] | None = None,
    all_reduce: str = "auto",
    compress: str = NONE,
    transport: str = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    save_every: int = 0,
    keep: int = 2,
    report: Callable[[StepReport], object] = lambda report: None,
    **knobs: Value,
) -> Trained:
    """Train a model that is cut into stages, one or more on each rank, and return when all ranks are done.

    Every rank calls this with equal arguments. An error that the user can correct is printed once, and ends every rank
    with exit code 2 (`SystemExit`).

    Args:
        model: a `Sequential` or what it is made of, or a module that `pipelined.trace` has traced.
        batches: (inputs, targets) of each whole step, equal on all ranks; a list, or another iterable that can begin
            again, is repeated. Or a `Feed`, which gives each rank the microbatches that it computes.
        loss: the mean loss of one microbatch, from its outputs and targets.
        optimizer: builds an optimizer of torch from a list of parameters; called on each rank with its own.
        plan: the result of `pipelined.plan`. It sets schedule, depth, width, microbatches, recompute and knobs; do not
            give them beside it.
        schedule: a name, a .py file or .csv table, or a class, function or module of your own; default: one_f_one_b.
        depth: the stages of a pipeline; default: one for each rank of it, or two where the schedule needs two.
        width: pipelines that run in parallel, each on its own microbatches; default: 1.
        microbatches: microbatches of one pipeline in a step; default: twice the depth.
        steps: the steps to train; default: as many as there are batches (`len(batches)`).
        dtype: the dtype of parameters, of activations and of inputs in floating point.
        autocast: bfloat16 inside the forward.
        recompute: keep only the inputs of a stage, and run each forward again before its backward.
        seed: the seed of the initial values and of all random numbers in layers.
        clip: the largest global gradient norm; 0 does not clip.
        lr_scheduler: builds the scheduler of an optimizer; its `step()` follows every step.
        all_reduce: the algorithm of the gradient sums.
        compress: the codec of tensors between stages.
        transport: "auto" takes the launcher's; else the name or URL of a transport.
        checkpoint: the directory in which the state is saved at the end, and on a stop request.
        resume: the checkpoint, or the directory of checkpoints, to continue from.
        save_every: save after each multiple of this number of steps, too; 0: only at the end.
        keep: the number of checkpoints to keep.
        report: called on rank 0 with the report of each step.
        knobs: further settings that the schedule declares, such as `pipes=4`; see docs/schedules.md.
    Returns: losses and state, see `Trained`.
    Raises:
        SystemExit: 2 after an error that the user can correct, 1 after a failure, 130 after an interrupt; the message
            is printed.
    """
    launch = ALONE
    try:
        launch = detect(os.environ, transport)
        feed = MicrobatchFeed(batches) if isinstance(batches, Feed) else BatchFeed(batches)
        asked: dict[str, Any] = {"schedule": schedule, "depth": depth, "width": width, "microbatches": microbatches}
        arranged = _plan(launch, feed, knobs, **asked) if plan is None else _planned(plan, asked, recompute, knobs)
        feed.cut(arranged.rows, dtype, kept=2 + steps_to_fill(arranged.shape))
        bound = bind(model, loss, seed, feed.inputs(0, 0))
        if plan is not None:
            recompute = plan.recompute
            _require(plan, bound.identity(), feed, launch)
        job = TrainingJob(
            model=bound,
            feed=feed,
            plan=arranged,
            optimizer=partial(UserOptimizer, optimizer, clip, lr_scheduler),
            numerics=Numerics(dtype, autocast, bool(recompute), all_reduce, compress),
            seed=seed,
        )
        saved = partial(WholeRun, checkpoint=_path(checkpoint), resume=_path(resume), save_every=save_every, keep=keep)
        work = saved(job, feed, steps=_steps(steps, batches), report=report)
    except UsageError as error:
        raise SystemExit(refuse(error, launch)) from error
    return _run(launch, work)


def _plan(
    launch: Launch,
    feed: BatchFeed | MicrobatchFeed,
    knobs: Mapping[str, Value],
    *,
    schedule: SomeSchedule | None,
    depth: int | None,
    width: int | None,
    microbatches: int | None,
) -> Plan:
    """The plan of a job: what is left open follows from the ranks that were started and from the first batch."""
    width = 1 if width is None else width
    if width < 1:
        raise PlanError(f"width must be at least 1 (it is {width})")
    name = name_of(schedule or "one_f_one_b")
    require_knobs(name, knobs)
    ranks = launch.world_size or (depth or 1) * width
    if depth is None:
        depth, knobs = default_depth(name, max(1, ranks // width), knobs)
    microbatches = 2 * depth if microbatches is None else microbatches
    rows = feed.rows_each(microbatches * width)
    plan = Plan(name, depth, width, rows, microbatches, knobs)
    return replace(plan, microbatch=rows * plan.layout.parts) if isinstance(feed, MicrobatchFeed) else plan


def _planned(plan: Planned, asked: Mapping[str, Any], recompute: bool | None, knobs: Mapping[str, Value]) -> Plan:
    """The arrangement that was planned; refuse settings beside it, which it sets itself."""
    require_knobs(plan.plan.schedule, knobs)
    every = {**asked, "recompute": recompute, **knobs}
    if given := [name for name, value in every.items() if value is not None]:
        raise PlanError(f"plan= sets {given[0]} (given too: {', '.join(given)}); leave it out, or plan with it")
    return plan.plan


def _require(planned: Planned, identity: Mapping[str, Any], feed: BatchFeed | MicrobatchFeed, launch: Launch) -> None:
    """Refuse another model, number of ranks or rows of a microbatch than those that were planned."""
    planned.content.require(Path("plan="), identity, launch.world_size)
    rows = feed.rows_each(planned.plan.total_microbatches)
    if rows != planned.plan.rows:
        fact = f"the plan is for microbatches of other rows (rows planned: {planned.plan.rows}, rows: {rows})"
        raise PlanError(f"{fact}; plan for these batches")


def _steps(steps: int | None, batches: Iterable[Batch] | Feed) -> int:
    if steps is None:
        if not isinstance(batches, Sized):
            raise UsageError("the batches have no length, so the number of steps is unknown; give steps=")
        return len(batches)
    if steps < 0:
        raise UsageError(f"steps must be at least 0 (it is {steps})")
    return steps


def _path(path: "str | os.PathLike[str] | None") -> Path | None:
    return None if path is None else Path(path)


def _run(launch: Launch, work: WholeRun) -> Trained:
    """Run this process's ranks; in a thread of its own where a loop is running already, as in a notebook."""
    stop, results = StopRequest(os.getppid() if AGENT in os.environ else None), dict[int, Trained]()

    async def rank(transport: Transport) -> int:
        async with RankSession.opened(transport, launch, work.job) as opened:
            results[transport.rank] = await work.train(opened, lambda: stop.requested)
        return 0

    def start() -> int:
        return run(launch, work.job.plan.world_size, rank, work.job.plan.stages_of, "pipelined.train")

    is_main = threading.current_thread() is threading.main_thread()
    with stop.listening() if is_main else nullcontext():
        code = outside_of_a_loop(start)
    if code:
        raise SystemExit(code)
    return results[launch.rank]
