"""`pipelined.train`: trains a user's model to its end, on as many ranks as the launcher started.

mpirun -n 4 python mine.py        (or torchrun, srun; plain python runs every rank in this process)

The signatures of `train`, `Trainer` and `plan` repeat the keywords that they share, because an editor then completes
and checks them, and `help` shows their defaults; tests hold them equal. The bodies do not repeat them: `Numerics`,
`Arrangement`, `UserJob` and `WholeRun` each take their own from the arguments of a call, and say what these mean.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sized
from contextlib import nullcontext
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from pipelined.api.arrangement import AUTO, Arrangement, first_batch, require
from pipelined.api.data.batch import Batch
from pipelined.api.data.feed import Feed, JobFeed, job_feed
from pipelined.api.laboratory.plan import plan_to_train
from pipelined.api.laboratory.planning import Planned
from pipelined.api.model.sequential import Loss
from pipelined.api.model.user_model import Layers, bind
from pipelined.api.rank import RankSession
from pipelined.api.split.model import SplitRow
from pipelined.api.user_job import UserJob
from pipelined.api.user_optimizer import OptimizerBuilder
from pipelined.api.whole_run import Trained, WholeRun
from pipelined.errors import UsageError, require_whole
from pipelined.process.exit import print_to_stderr
from pipelined.process.launch import ALONE, Launch, detect
from pipelined.process.run import outside_of_a_loop, refuse, run
from pipelined.process.stop_request import StopRequest
from pipelined.programs.staleness import steps_to_fill
from pipelined.schedules.knobs import Value
from pipelined.schedules.own import SomeSchedule
from pipelined.training.exchange.compression import NONE
from pipelined.training.step_report import StepReport
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
    tensor: int = 1,
    layout: str | None = None,
    microbatches: int | None = None,
    steps: int | None = None,
    dtype: torch.dtype = torch.float32,
    autocast: bool | torch.dtype = False,
    recompute: bool | None = None,
    compile: bool = False,
    seed: int = 0,
    clip: float = 0.0,
    lr_scheduler: Callable[[torch.optim.Optimizer], LRScheduler] | None = None,
    all_reduce: str = "auto",
    exact_sums: bool = False,
    shard_optimizer: bool = False,
    offload_optimizer: bool = False,
    delayed_update: bool = False,
    masters: torch.dtype | None = None,
    compress: str = NONE,
    transport: str = "auto",
    checkpoint: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    save_every: int = 0,
    async_save: bool = False,
    keep: int = 2,
    export: str | os.PathLike[str] | None = None,
    report: Callable[[StepReport], object] = lambda report: None,
    **knobs: Value,
) -> Trained:
    """Train a model cut into stages over ranks, which all call this with equal arguments; return when all are done.

    Args:
        model, batches: a `Sequential`, its parts, or a traced module; (inputs, targets) of whole steps, or a `Feed`.
        loss, optimizer: the mean loss from outputs and targets of a microbatch; builds one of torch from parameters.
        plan: the result of `pipelined.plan`, which sets schedule, sizes, recompute and knobs: leave these out.
        schedule, knobs: a name, file, class, function or module; "auto" plans first. Its settings, such as `pipes=4`.
        depth, width, tensor, layout: stages; parallel pipelines; the ranks of a worker, and how they split layers.
        microbatches, steps: of one pipeline in a step, by default twice the depth; to train, by default all batches.
        dtype, autocast, seed, clip, lr_scheduler: of parameters, activations, inputs; of products (True: bfloat16); of
            initial values and random numbers; the largest gradient norm (0: any); builds an optimizer's scheduler.
        recompute, compile, offload_optimizer, delayed_update, masters, shard_optimizer: see docs/memory.md.
        all_reduce, exact_sums: the algorithm of the gradient sums, or exactly, by one thread a rank.
        compress, transport: the codec between stages; "auto" (the launcher's), or a transport's name or URL.
        checkpoint, resume, save_every, keep, async_save, export: where, when and how to save; see `WholeRun`.
        report: called on rank 0 with the report of each step.
    Returns: losses and state, see `Trained`.
    Raises:
        SystemExit: on every rank: 2 after a refusal, 1 after a failure, 130 after an interrupt; printed once.
    """
    return _run(*_prepared(locals()))


def _prepared(arguments: Mapping[str, Any]) -> tuple[Launch, WholeRun]:
    """The ranks and the job of a call, by the names of its arguments; a refusal is printed, and raises SystemExit."""
    launch = ALONE
    try:
        user = UserJob.of_call(arguments)
        launch = detect(os.environ, arguments["transport"])
        return launch, _work(arguments, user, launch)
    except UsageError as error:
        raise SystemExit(refuse(error, launch, "pipelined.train")) from error


def _work(arguments: Mapping[str, Any], user: UserJob, launch: Launch) -> WholeRun:
    feed, wanted = job_feed(arguments["batches"]), Arrangement.of_call(arguments)
    planned = _planned(arguments, user, feed, wanted, launch)
    plan = wanted.plan(launch, feed) if planned is None else planned.plan
    feed.configure(plan.rows, user.numerics.dtype, cached_steps=2 + steps_to_fill(plan.shape))
    model = user.bind(feed.inputs(0, 0), plan)
    if planned is not None:
        require(planned, model.identity(), feed, launch)
    job = user.arranged(model, feed, plan, wanted.recompute if planned is None else planned.recompute)
    return WholeRun.of_call(arguments, job=job, feed=feed, steps=_steps(arguments["steps"], arguments["batches"]))


def _planned(
    arguments: Mapping[str, Any], user: UserJob, feed: JobFeed, wanted: Arrangement, launch: Launch
) -> Planned | None:
    """The plan that is given, or found for `schedule="auto"`; None: the arguments are the arrangement."""
    if (plan := arguments["plan"]) is not None:
        wanted.require_open()
        return plan
    if wanted.schedule != AUTO:
        return None
    batch = first_batch(feed)
    whole = bind(user.model, user.loss, user.seed, batch[0])
    return plan_to_train(whole, batch, arguments["optimizer"], numerics=user.numerics, wanted=wanted, launch=launch)


def _steps(steps: int | None, batches: Iterable[Batch] | Feed) -> int:
    if steps is None:
        if not isinstance(batches, Sized):
            raise UsageError("the batches have no length, so the number of steps is unknown; give steps=")
        return len(batches)
    require_whole("steps", steps, 0)
    return steps


def _run(launch: Launch, work: WholeRun) -> Trained:
    """Run this process's ranks; in a thread of its own where a loop is running already, as in a notebook."""
    if isinstance(work.job.model, SplitRow) and launch.rank == 0:
        print_to_stderr(work.job.model.described())
    stop, results = StopRequest.of_rank(), dict[int, Trained]()

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
