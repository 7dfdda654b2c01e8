"""`pipelined.train`: trains a user's model to its end, on as many ranks as the launcher started.

mpirun -n 4 python mine.py        (or torchrun, srun; plain python runs every rank in this process)

The signatures of `train`, `Trainer` and `plan` repeat the keywords that they share, because an editor then completes
and checks them, and `help` shows their defaults; tests hold them equal. The bodies do not repeat them: `Numerics`,
`Arrangement`, `CallArguments` and `WholeRun` each take their own from `CallLocals`, and say what these mean.
"""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from torch.optim.lr_scheduler import LRScheduler

from pipelined.api.arrangement import Arrangement, first_batch, require_rows
from pipelined.api.call_arguments import CallArguments
from pipelined.api.data.batch import Batch
from pipelined.api.data.feed import Feed, JobFeed, job_feed, steps_in
from pipelined.api.laboratory.find_plan import Planned
from pipelined.api.laboratory.plan import plan_to_train
from pipelined.api.model.sequential import Loss
from pipelined.api.model.user_model import Layers, bind
from pipelined.api.rank import RankSession
from pipelined.api.split.model import SplitRow
from pipelined.api.user_optimizer import OptimizerBuilder
from pipelined.api.whole_run import Trained, WholeRun
from pipelined.errors import Refused, UsageError
from pipelined.process.exit import USAGE, print_to_stderr
from pipelined.process.launch import ALONE, Launch, detect
from pipelined.process.refusal import refuse
from pipelined.process.run import outside_of_a_loop, run
from pipelined.process.stop_request import StopRequest
from pipelined.programs.plan import Plan
from pipelined.programs.staleness import steps_to_fill
from pipelined.schedules.parts.knobs import KnobValue
from pipelined.schedules.user.load import SomeSchedule
from pipelined.training.exchange.compression import NONE
from pipelined.training.job import CallLocals
from pipelined.training.segments.step_report import StepReport
from transports import Transport


def train(
    model: Layers,
    batches: Iterable[Batch] | Feed,
    *,
    loss: Loss,
    optimizer: OptimizerBuilder,
    plan: Plan | Planned | None = None,
    schedule: SomeSchedule | None = None,
    depth: int | None = None,
    width: int | None = None,
    tensor: int | str = 1,
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
    share_devices: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    save_every: int = 0,
    async_save: bool = False,
    keep: int = 2,
    export: str | os.PathLike[str] | None = None,
    report: Callable[[StepReport], object] = lambda report: None,
    **knobs: KnobValue,
) -> Trained:
    """Train a model cut into stages over ranks, which all call this with equal arguments; return when all are done.

    Args:
        model: a `Sequential` or what it is made of, or a module that `pipelined.trace` has traced.
        batches: (inputs, targets) of each whole step, equal on all ranks, repeated if they can be; or a `Feed`.
        loss: the mean loss of one microbatch, from its outputs and targets.
        optimizer: builds an optimizer of torch from a list of parameters; called on each rank with its own.
        plan: a `Plan` in place of schedule, sizes and knobs; that of `pipelined.plan` sets recompute and layout, too.
        schedule: a name, a .py file or .csv table, or a class, function or module of your own; default: one_f_one_b.
            "auto" finds the fastest arrangement as `pipelined.plan` does, with what is given besides, and trains by it.
        depth: the stages of a pipeline; default: one for each rank of it, or two where the schedule needs two.
        width: pipelines in parallel, each on its own microbatches; default: 1, or with `tensor` as many as can be.
        tensor: the ranks of a worker, which compute each layer together; "auto" plans them; see docs/teams.md.
        layout: how the ranks of a worker split every layer; see docs/teams.md.
        microbatches: of one pipeline in a step; default: twice the depth.
        steps: steps to train; default: `len(batches)`.
        dtype: of parameters, activations and floating-point inputs.
        autocast: the dtype of products in the forward; True: bfloat16; False: `dtype`.
        recompute: keep only a stage's inputs, and run its forward again before its backward; see docs/memory.md.
        compile: compile each stage by torch's compiler; see docs/memory.md.
        seed: of initial values and of all random numbers in layers.
        clip: the largest global gradient norm; 0 disables clipping.
        lr_scheduler: builds the scheduler of an optimizer; its `step()` follows every step.
        all_reduce: the algorithm of the gradient sums.
        exact_sums: sum gradients without rounding, with one thread a rank; see docs/exact-sums.md.
        shard_optimizer: the ranks that hold a parameter divide its update; see docs/memory.md.
        offload_optimizer: keep the optimizer's state, and update, on the host; see docs/memory.md.
        delayed_update: a step computes while the update before it runs; see docs/memory.md.
        masters: the dtype of the copies that the optimizer updates.
        compress: the codec of activations and gradients between stages.
        transport: a transport's name or URL; "auto": the launcher's.
        share_devices: let ranks share a GPU where a machine has fewer GPUs than ranks.
        checkpoint: the directory to save in, at the end and on a stop request.
        resume: a checkpoint, or a directory of checkpoints, to continue from.
        save_every: save after each multiple of this number of steps, too; 0: only at the end.
        async_save: write checkpoints before the last one while training continues.
        keep: the number of checkpoints to keep.
        export: the file for the trained state, written one tensor after another; None: rank 0 gathers the state.
        report: called on rank 0 with the report of each step.
        knobs: further settings that the schedule declares, such as `pipes=4`; see docs/schedules.md.
    Returns: losses and state, see `Trained`.
    Raises:
        SystemExit: on every rank, printed: 2 after a refusal (a UsageError, too), 1 after a failure, 130 interrupted.
    """
    return _run(*_prepared(locals()))


def _prepared(arguments: CallLocals) -> tuple[Launch, WholeRun]:
    """The ranks and the job of a call, by the names of its arguments; raises Refused, which is printed."""
    launch = ALONE
    try:
        user = CallArguments.of_call(arguments)
        launch = replace(detect(os.environ, arguments["transport"]), share_devices=arguments["share_devices"])
        return launch, _work(arguments, user, launch)
    except UsageError as error:
        refuse(error, launch, "pipelined.train")
        raise Refused(str(error)) from error


def _work(arguments: CallLocals, user: CallArguments, launch: Launch) -> WholeRun:
    feed, wanted = job_feed(arguments["batches"]), Arrangement.of_call(arguments)
    arranged = _arranged(arguments, user, feed, wanted, launch)
    planned, plan = (arranged, arranged.plan) if isinstance(arranged, Planned) else (None, arranged)
    if arguments["plan"] is not None:
        require_rows(plan, feed)
    feed.configure(plan.rows, user.numerics.dtype, cached_steps=2 + steps_to_fill(plan.shape))
    model = (user if planned is None else replace(user, layout=None)).bind(feed.inputs(0, 0), plan)
    if planned is not None:
        planned.content.require(Path("plan="), model.identity(), launch.world_size)
    job = user.arranged(model, feed, plan, wanted.recompute if planned is None else planned.recompute)
    steps = steps_in(arguments["batches"]) if arguments["steps"] is None else arguments["steps"]
    return WholeRun.of_call(arguments, job=job, feed=feed, steps=steps)


def _arranged(
    arguments: CallLocals, user: CallArguments, feed: JobFeed, wanted: Arrangement, launch: Launch
) -> Plan | Planned:
    """The arrangement of the job: the plan that is given, or found for "auto", or that of the other arguments."""
    if (plan := arguments["plan"]) is not None:
        wanted.require_open(plan)
        return plan
    if not wanted.is_planned:
        return wanted.plan(launch, feed)
    batch = first_batch(feed)
    whole = bind(user.model, user.loss, user.seed, batch[0])
    return plan_to_train(whole, batch, arguments["optimizer"], numerics=user.numerics, wanted=wanted, launch=launch)


def _run(launch: Launch, work: WholeRun) -> Trained:
    """Run this process's ranks; in a thread of its own where a loop is running already, as in a notebook."""
    if isinstance(work.job.model, SplitRow) and launch.rank == 0:
        print_to_stderr(work.job.model.described())
    stop, results, refusals = StopRequest.of_rank(), dict[int, Trained](), list[UsageError]()

    async def rank(transport: Transport) -> int:
        try:
            async with RankSession.opened(transport, launch, work.job) as opened:
                results[transport.rank] = await work.train(opened, lambda: stop.requested)
        except UsageError as error:
            refusals.append(error)
            raise
        return 0

    def start() -> int:
        return run(launch, work.job.plan.world_size, rank, work.job.plan.stages_of, "pipelined.train")

    is_main = threading.current_thread() is threading.main_thread()
    with stop.listening() if is_main else nullcontext():
        code = outside_of_a_loop(start)
    if code == USAGE:
        reason = refusals[0] if refusals else None
        raise Refused(str(reason or "another rank refused; rank 0 printed why")) from reason
    if code:
        raise SystemExit(code)
    return results[launch.rank]
