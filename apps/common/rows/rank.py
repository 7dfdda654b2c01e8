"""The training of one rank, from its stages to what follows the last step. Needs torch."""

from collections.abc import Sequence
from functools import cache, partial

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import pipelined as pp
from apps.common.flags.run_flags import RunFlags, start_of
from apps.common.rows.job import RowJob
from apps.common.rows.row_training import RowTraining
from apps.common.run.choose import clip_of
from apps.common.run.loop import ReportedLoop
from apps.common.run.numerics import DTYPES, numerics
from apps.common.run.report import Report
from apps.common.run.resume import agree_on_flags
from apps.common.run.trackers import opened_trackers
from pipelined.actors.agree import agree
from pipelined.api.arranged_job import ArrangedJob
from pipelined.api.data.feed import MicrobatchFeed
from pipelined.api.rank_session import RankSession
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.process.launch import Launch
from pipelined.process.stop_request import StopRequest
from pipelined.training.evaluate import Window
from pipelined.training.models.batch import convert_floats
from pipelined.training.models.split.split_row import SplitRow
from pipelined.training.models.user_model import TeamRequest, UserModel, bind
from pipelined.training.optimizer import OptimizerConfig
from transports import Transport


def user_model(job: RowJob) -> UserModel:
    """The model with its loss.

    Raises:
        UsageError: the ranks of a worker cannot split it so, or the plan is for another model.
    """
    plan = job.plan
    training = job.task.training(job.plan)
    example = convert_floats(training.example(plan.rows)[0], torch.float32)
    team = TeamRequest.of(plan, job.task.layout(plan), DTYPES[job.config.dtype])
    model = bind(training.row(), training.loss, job.config.seed, example, team)
    if job.plan_file is not None and job.config.plan is not None:
        job.plan_file.require(job.config.plan, model.identity(), None)
    return model


def training_job(job: RowJob, training: RowTraining, model: UserModel) -> ArrangedJob:
    """What a rank trains, and how; the data is read."""
    config = job.config

    def optimizer(parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        matrices = [parameter for parameter in parameters if parameter.dim() > 1]
        vectors = [parameter for parameter in parameters if parameter.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
        groups = [group for group in groups if group["params"]]
        return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps)

    schedule = partial(lr_scheduler, config) if job.plan.flushes else None
    optimizers = partial(UserOptimizer, optimizer, clip_of(config, job.plan), schedule)
    feed = MicrobatchFeed(
        pp.Feed(lambda *place: training.microbatch(*place)[0], lambda *place: training.microbatch(*place)[1])
    )
    feed.configure(job.plan.rows, DTYPES[config.dtype], cached_steps=2)
    notes = {**job.to_dict(), **training.notes()}
    return ArrangedJob(model, feed, job.plan, optimizers, numerics(config), seed=config.seed, notes=notes)


def lr_scheduler(config: RunFlags, optimizer: torch.optim.Optimizer) -> LambdaLR:
    """The share of the rate that `apps.gpt2` has with these flags: it rises, and falls as --lr-schedule says."""
    floor, decay = config.lr_floor, config.lr_schedule
    return LambdaLR(optimizer, OptimizerConfig(1.0, config.steps, config.warmup, floor, decay=decay).rate)


def describe_split(model: UserModel) -> str | None:
    """How the ranks of a worker split the model; None for one."""
    return model.describe() if isinstance(model, SplitRow) else None


async def train(transport: Transport, job: RowJob, launch: Launch, stop: StopRequest, model: UserModel) -> int:
    """Run one rank of a job to its end; returns its exit code."""
    config = job.config
    training = job.task.training(job.plan)
    await agree(transport, "flags", agree_on_flags(transport, job.to_dict()))
    data_line = await training.read(transport)
    if data_line and not transport.rank:
        print(data_line, flush=True)
    async with (
        RankSession.opened(transport, launch, training_job(job, training, model)) as rank,
        opened_trackers(config, not transport.rank) as trackers,
    ):
        path = start_of(config)
        if config.checkpoint is not None:
            await rank.claim(config.checkpoint, path)
        if path is None:
            await training.before_first_step(rank)
        done = 0 if path is None else await rank.load(path)
        step_s = job.plan_file.step_s if job.plan_file else None
        with Report(
            not transport.rank,
            first_step=done,
            steps=config.steps,
            tokens=job.plan.batch * job.task.units_per_row,
            metrics=config.metrics,
            predicted_s=step_s,
            unit=job.task.unit,
            trackers=trackers,
        ) as report:
            if config.metrics and done < config.steps:
                example = convert_floats(training.example(job.plan.rows), DTYPES[config.dtype])
                report.planned_bytes = await rank.planned_bytes(example)

            @cache
            def held_out_windows() -> Sequence[Window]:
                return [convert_floats(window, DTYPES[config.dtype]) for window in training.held_out_windows()]

            async def evaluate(done: int) -> float:
                return await rank.evaluate(held_out_windows())

            loop = ReportedLoop(config, job.plan, rank, report, stop=stop, evaluate=evaluate)
            loss = await loop.run(done)
            if loss is not None:
                await training.finish(rank, report, loss)
    return 0
