"""`pipelined.train`: trains a user's model to its end, on as many ranks as the launcher started.

mpirun -n 4 python mine.py        (or torchrun, srun; plain python runs every rank in this process)
"""

import os
import threading
from collections.abc import Callable, Iterable, Sized
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch.optim.lr_scheduler import LRScheduler

from pipelined.api.arrangement import AUTO, Arrangement, first_batch, require
from pipelined.api.data.batch import Batch
from pipelined.api.data.feed import Feed, job_feed
from pipelined.api.laboratory.plan import plan_to_train
from pipelined.api.laboratory.planning import Planned
from pipelined.api.model.sequential import Loss
from pipelined.api.model.user_model import Layers, Team, bind
from pipelined.api.rank import RankSession, TrainingJob
from pipelined.api.split.model import SplitRow
from pipelined.api.user_optimizer import OptimizerBuilder, UserOptimizer
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
from pipelined.training.job import Numerics
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
        model: a `Sequential` or what it is made of, or a module that `pipelined.trace` has traced.
        batches: (inputs, targets) of each whole step, equal on all ranks, repeated if they can be; or a `Feed`.
        loss: the mean loss of one microbatch, from its outputs and targets.
        optimizer: builds an optimizer of torch from a list of parameters; called on each rank with its own.
        plan: the result of `pipelined.plan`, which sets schedule, sizes, recompute and knobs: leave these out.
        schedule: a name, a .py file or .csv table, or a class, function or module of your own; default: one_f_one_b.
            "auto" finds the fastest arrangement as `pipelined.plan` does, with what is given besides, and trains by it.
        depth: the stages of a pipeline; default: one for each rank of it, or two where the schedule needs two.
        width: pipelines that run in parallel, each on its own microbatches; default: 1, or all ranks with `tensor`.
        tensor, layout: the ranks of a worker, and how they split every layer; see docs/sharding.md.
        microbatches, steps: of one pipeline in a step, by default twice the depth; to train, by default `len(batches)`.
        dtype, autocast: of parameters, activations and inputs; of products in the forward (True: bfloat16, or float16).
        recompute, compile: keep only a stage's inputs, and run its forward again; compile it, see docs/memory.md.
        seed, clip: of initial values and all random numbers in layers; the largest global gradient norm, 0: any.
        lr_scheduler: builds the scheduler of an optimizer; its `step()` follows every step.
        all_reduce, exact_sums: the algorithm of the gradient sums, or exactly (one thread a rank); docs/exact-sums.md.
        shard_optimizer, offload_optimizer: divide the update among holders; update copies on the host; docs/memory.md.
        delayed_update, masters: use the values of an update one step later; the dtype of the copies.
        compress, transport: the codec between stages; "auto" (the launcher's), or a transport's name or URL.
        checkpoint, resume: where to save, at the end and on a stop request; a checkpoint or such a directory to load.
        save_every, keep: save whenever this many steps have passed, too (0: only at the end); the checkpoints to keep.
        async_save, export: write those between while training continues; the file for the state, tensor by tensor.
        report: called on rank 0 with the report of each step.
        knobs: further settings that the schedule declares, such as `pipes=4`; see docs/schedules.md.
    Returns: losses and state, see `Trained`.
    Raises:
        SystemExit: on every rank: 2 after a refusal, 1 after a failure, 130 after an interrupt; printed once.
    """
    launch = ALONE
    try:
        numerics = Numerics.of_call(locals())
        launch = detect(os.environ, transport)
        feed = job_feed(batches)
        wanted = Arrangement.of_call(locals())
        if plan is not None:
            wanted.require_open()
        elif schedule == AUTO:
            batch = first_batch(feed)
            whole = bind(model, loss, seed, batch[0])
            plan = plan_to_train(whole, batch, optimizer, numerics=numerics, wanted=wanted, launch=launch)
        arranged = wanted.plan(launch, feed) if plan is None else plan.plan
        feed.configure(arranged.rows, dtype, cached_steps=2 + steps_to_fill(arranged.shape))
        bound = bind(model, loss, seed, feed.inputs(0, 0), Team(arranged.tensor, layout, arranged.rows))
        if plan is not None:
            recompute = plan.recompute
            require(plan, bound.identity(), feed, launch)
        optimizers = partial(UserOptimizer, optimizer, clip, lr_scheduler)
        numerics = replace(numerics, recompute=bool(recompute))
        job = TrainingJob(model=bound, feed=feed, plan=arranged, optimizer=optimizers, numerics=numerics, seed=seed)
        work = WholeRun.of_call(locals(), steps=_steps(steps, batches))
    except UsageError as error:
        raise SystemExit(refuse(error, launch, "pipelined.train")) from error
    return _run(launch, work)


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
