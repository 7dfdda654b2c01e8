"""The VGG program of one rank, from its stages to the images that it gets right. Needs torch."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import pipelined as pp
from apps.common.flags import start_of
from apps.common.json_lines import append
from apps.common.numerics import DTYPES, numerics
from apps.common.report import Report, reporting
from apps.vgg.digits import Digits, digits, logistic_regression
from apps.vgg.job import Job
from apps.vgg.model import builders, cross_entropy, row
from apps.vgg.presets import VGGConfig
from pipelined.api.data.feed import MicrobatchFeed
from pipelined.api.model.user_model import Team, UserModel, bind
from pipelined.api.rank import RankSession, TrainingJob
from pipelined.api.split.model import SplitRow
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.process.launch import Launch
from pipelined.process.stop_request import StopRequest
from pipelined.random.keyed_random import keyed_generator
from pipelined.training.digests import model_digest
from pipelined.training.evaluate import Window
from transports import Transport

Pair = tuple[torch.Tensor, torch.Tensor]
"""Images (B, colours, side, side) and their classes (B,)."""


def enlarged(config: VGGConfig, data: Digits, index: torch.Tensor) -> Pair:
    """Some images, as large and with as many colours as the model takes."""
    images = torch.from_numpy(data.images)[index, None]
    larger = nn.functional.interpolate(images, (config.side, config.side), mode="bilinear", align_corners=False)
    return larger.expand(-1, config.colours, -1, -1).contiguous(), torch.from_numpy(data.classes)[index]


def order(seed: int, step: int, batch: int, images: int) -> torch.Tensor:
    """The images of a step: each epoch is a permutation of its own, and a step may end one and begin the next."""
    first = step * batch
    epochs = range(first // images, (first + batch - 1) // images + 1)
    every = torch.cat([torch.randperm(images, generator=keyed_generator(seed, "epoch", epoch)) for epoch in epochs])
    begun = first - epochs.start * images
    return every[begun : begun + batch]


def feed_of(job: Job) -> MicrobatchFeed:
    """The training images of a job, by step and microbatch."""
    train, plan = digits()[0], job.plan

    def pair(step: int, microbatch: int) -> Pair:
        index = order(job.config.seed, step, plan.batch, len(train))
        return enlarged(job.model, train, index[microbatch * plan.rows : (microbatch + 1) * plan.rows])

    feed = MicrobatchFeed(pp.Feed(lambda *at: pair(*at)[0], lambda *at: pair(*at)[1]))
    feed.cut(plan.rows, DTYPES[job.config.dtype], kept=2)
    return feed


def model_of(job: Job) -> UserModel:
    """The model with its loss.

    Raises:
        UsageError: the ranks of a worker cannot split it so, or the plan is for another model.
    """
    plan, model = job.plan, job.model
    example = torch.empty(plan.rows, model.colours, model.side, model.side)
    bound = bind(row(model), cross_entropy, job.config.seed, example, Team(plan.tensor, job.layout, plan.rows))
    if job.planned is not None and job.config.plan is not None:
        job.planned.require(job.config.plan, bound.identity(), None)
    return bound


def training_job(job: Job) -> TrainingJob:
    """What the ranks of a process train, and how."""
    config = job.config

    def optimizer(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=config.lr, weight_decay=config.weight_decay)  # type: ignore[arg-type]

    schedule = partial(_cosine, config.warmup, config.steps) if job.plan.flushes else None
    optimizers = partial(UserOptimizer, optimizer, job.clip, schedule)
    return TrainingJob(model_of(job), feed_of(job), job.plan, optimizers, numerics(config), config.seed)


def _cosine(warmup: int, steps: int, optimizer: torch.optim.Optimizer) -> LambdaLR:
    """The rate rises during the warm-up, and falls to a tenth by half a cosine."""

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        done = min(1.0, (step - warmup) / max(1, steps - warmup))
        return 0.55 + 0.45 * float(torch.cos(torch.tensor(torch.pi * done)))

    return LambdaLR(optimizer, share)


def described(training: TrainingJob) -> str | None:
    """How the ranks of a worker split the model; None for one."""
    return training.model.described() if isinstance(training.model, SplitRow) else None


async def train(transport: Transport, job: Job, launch: Launch, stop: StopRequest, training: TrainingJob) -> int:
    """Run one rank of a job to its end; returns its exit code."""
    config = job.config
    async with RankSession.opened(transport, launch, training) as rank:
        if config.checkpoint is not None:
            await rank.claim(config.checkpoint, start_of(config))
        path = start_of(config)
        done = 0 if path is None else await rank.load(path)
        step_s = job.planned.step_s if job.planned else None
        with reporting(
            not transport.rank,
            first=done,
            steps=config.steps,
            tokens=job.plan.batch,
            metrics=config.metrics,
            predicted=step_s,
            unit="images",
        ) as report:
            if await _steps(rank, job, report, stop, done):
                report.drift()
                await _finish(rank, job, report)
    return 0


async def _steps(rank: RankSession, job: Job, report: Report, stop: StopRequest, done: int) -> bool:
    """Train; whether this came to the last step."""
    config = job.config
    if done >= config.steps:
        report.evaluated(done, await rank.evaluate(held_out(job)))
    while done < config.steps:
        span = job.plan.segment(done, config.steps, config.eval_every, config.save_every, config.digest)
        told = await rank.train(span, lambda: stop.requested, lambda earlier: None)
        done = told.step + 1
        stopped = told.stop and done < config.steps
        due = [every > 0 and done % every == 0 for every in (config.eval_every, config.save_every, config.digest)]
        loss = await rank.evaluate(held_out(job)) if not stopped and (due[0] or done == config.steps) else None
        report.step(told, loss, await _digest(rank) if due[2] else "")
        if config.checkpoint and (stopped or due[1] or done == config.steps):
            await rank.save(config.checkpoint, done, config.keep)
        if stopped:
            where = config.checkpoint or "nowhere: give --checkpoint to keep the work"
            report.say(f"stopped on request after step {done}; saved to {where}")
            return False
    return True


async def _digest(rank: RankSession) -> str:
    return await model_digest(rank.trainer.context.actor.transport, rank.trainer.local)


def held_out(job: Job) -> list[Window]:
    """The held-out images, in microbatches."""
    data, rows, dtype = digits()[1], job.plan.rows, DTYPES[job.config.dtype]
    windows = []
    for start in range(0, len(data), rows):
        images, classes = enlarged(job.model, data, torch.arange(start, min(start + rows, len(data))))
        windows.append((images.to(dtype), classes))
    return windows


async def _finish(rank: RankSession, job: Job, report: Report) -> None:
    """On rank 0, count the held-out images that the model gets right, and those of a logistic regression."""
    state = await rank.state_dict()
    if state is None:
        return
    right, plain = await asyncio.gather(
        asyncio.to_thread(count_right, job, state), asyncio.to_thread(logistic_regression, *digits())
    )
    total = len(digits()[1])
    report.say(
        f"held-out images: {right} of {total} right ({right / total:.3f}); "
        f"logistic regression: {plain} ({plain / total:.3f})"
    )
    if job.config.metrics is not None:
        found = {"right": right, "held_out": total, "logistic_regression": plain}
        append(job.config.metrics, {"step": rank.done, **found})


def count_right(job: Job, state: dict[str, torch.Tensor]) -> int:
    """The held-out images whose class a model with this state gets right."""
    named: list[tuple[str, Callable[[], nn.Module]]] = list(builders(job.model).items())
    model = nn.Sequential(OrderedDict((name, build()) for name, build in named)).to(DTYPES[job.config.dtype])
    model.load_state_dict(state)
    model.eval()
    with torch.no_grad():
        return sum(int((model(images).argmax(1) == classes).sum()) for images, classes in held_out(job))
