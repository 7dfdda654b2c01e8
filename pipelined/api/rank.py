"""One rank of a job that `pipelined.train` starts: build the stages, load, train, save, and gather the result."""

import asyncio
import secrets
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch

from pipelined.actors.actor import Actor
from pipelined.actors.agree import agree
from pipelined.actors.executor import TorchExecutor
from pipelined.api.feed import BatchFeed
from pipelined.api.sequential import LayeredModel
from pipelined.api.user_optimizer import UserOptimizer
from pipelined.checkpoints import checkpoint
from pipelined.checkpoints.claim import Claim, claim
from pipelined.checkpoints.trainer_state import load, save
from pipelined.errors import UsageError
from pipelined.programs.plan import Plan
from pipelined.traces.tracer import NullTracer
from pipelined.training.trainer import Numerics, StepReport, Trainer
from transports import Transport


@dataclass
class Trained:
    """The result of `train`, on every rank.

    Attributes:
        losses: the mean loss of each step trained in this run.
        steps: the steps done, those of earlier runs included.
        stopped: whether a stop request (SIGTERM) ended the run before its last step.
    """

    losses: list[float] = field(default_factory=list)
    steps: int = 0
    stopped: bool = False
    state: dict[str, torch.Tensor] | None = None

    def state_dict(self) -> dict[str, torch.Tensor] | None:
        """Every parameter and buffer by name, as `torch.nn.Sequential` names them, on rank 0; None on other ranks."""
        return self.state


@dataclass(frozen=True)
class Saving:
    """Where a job's state is saved, and where it begins.

    Args:
        directory: the directory of checkpoints; None: nothing is saved.
        resume: a checkpoint, or a directory of checkpoints, to continue from.
        every: save after every so many steps, besides the end; 0: only there.
        keep: the number of checkpoints to keep.
    """

    directory: Path | None
    resume: Path | None
    every: int
    keep: int

    def next_drain(self, done: int, steps: int) -> int:
        """The number of steps done at the next save, or at the end."""
        return min(steps, done - done % self.every + self.every) if self.directory and self.every else steps

    def claim(self, identity: dict[str, object]) -> Claim | None:
        """Claim the directory for this run.

        Raises:
            UsageError: another run saves there, or it holds checkpoints and this run does not continue from them.
        """
        if self.directory is None:
            return None
        newest = checkpoint.latest(self.directory)
        if newest is not None:
            checkpoint.open(newest).require(identity)
            if self.resume is None:
                fact = f"{self.directory} holds checkpoints of an earlier run (the latest: {newest.name})"
                raise UsageError(f"{fact}; add resume={str(self.directory)!r} to continue, or choose another directory")
        return claim(self.directory, secrets.token_hex(8))


@dataclass(frozen=True)
class TrainingJob:
    """What `train` was asked for; equal on all ranks.

    Args:
        optimizer: makes the settings of one rank's optimizer.
        report: called on rank 0 with the report of each step.
    """

    model: LayeredModel
    feed: BatchFeed
    plan: Plan
    optimizer: Callable[[], UserOptimizer]
    numerics: Numerics
    seed: int
    steps: int
    saving: Saving
    report: Callable[[StepReport], None]


async def run_rank(
    transport: Transport, *, job: TrainingJob, executor: TorchExecutor, stopping: Callable[[], bool], done: Trained
) -> int:
    """Train one rank of a job to its end; returns its exit code, and fills `done`.

    Args:
        stopping: whether this process received a stop request.
    """
    claiming = (
        asyncio.to_thread(job.saving.claim, dict(job.model.identity())) if not transport.rank else asyncio.sleep(0)
    )
    claimed = await agree(transport, "claim", claiming)
    try:
        with claimed or nullcontext():
            async with Actor(transport) as actor:
                optimizer = job.optimizer()
                trainer = _trainer(actor, job, optimizer, executor)
                await _Run(job, trainer, optimizer, stopping, done, bool(claimed and claimed.held)).steps()
    finally:
        executor.close()
    return 0


def _trainer(actor: Actor, job: TrainingJob, optimizer: UserOptimizer, executor: TorchExecutor) -> Trainer:
    if optimizer.schedule is not None and not job.plan.flushes:
        fact = f"{job.plan.schedule} updates a stage several times a step, so a scheduler has no step to follow"
        raise UsageError(f"{fact}; leave lr_scheduler out, or choose a schedule with a flush")
    return Trainer(
        actor,
        job.model,
        job.plan,
        optimizer_config=optimizer,
        numerics=job.numerics,
        executor=executor,
        feed=job.feed,
        tracer=NullTracer(),
        sequence=1,
        seed=job.seed,
    )


@dataclass(frozen=True)
class _Run:
    """The steps of one rank."""

    job: TrainingJob
    trainer: Trainer
    optimizer: UserOptimizer
    stopping: Callable[[], bool]
    done: Trained
    claimed: bool

    async def steps(self) -> None:
        """Load, train every step, save, and gather the whole state at rank 0."""
        job, done = self.job, await self._load()
        while done < job.steps:
            report = await self._advance(done)
            done = report.step + 1
            if report.stop or done == job.steps or done == job.saving.next_drain(done - 1, job.steps):
                await self._save(done)
            if report.stop and done < job.steps:
                self.done.stopped = True
                break
        self.done.steps, tensors = done, await gather_state(self.trainer)
        if tensors is not None:
            self.done.state = job.model.state_dict(tensors)

    async def _advance(self, done: int) -> StepReport:
        """Train at least one more step; returns the last one's report."""
        if self.job.plan.flushes:
            await asyncio.to_thread(self.job.feed.batch, done)
        last = done + 1 if self.job.plan.flushes else self.job.saving.next_drain(done, self.job.steps)
        report = await self.trainer.train(range(done, last), self.stopping, self._tell)
        self.optimizer.step()
        self._tell(report)
        return report

    def _tell(self, report: StepReport) -> None:
        """Keep a step's loss. Ranks of one process share the result: their first one fills it."""
        if report.step == len(self.done.losses) + self.done.steps:
            self.done.losses.append(report.loss)
        if self.trainer.context.actor.rank == 0:
            self.job.report(report)

    async def _load(self) -> int:
        path = self.job.saving.resume
        if path is None:
            return 0
        done = await load(self.trainer, path)
        if done > self.job.steps:
            raise UsageError(
                f"{path} is beyond the last step (saved: {done}, steps: {self.job.steps}); train more steps"
            )
        await asyncio.to_thread(self.job.feed.skip, done)
        self.optimizer.resume(done)
        self.done.steps = done
        return done

    async def _save(self, done: int) -> None:
        saving = self.job.saving
        if saving.directory is not None:
            config = {"plan": self.job.plan.schedule, "depth": self.job.plan.depth, "width": self.job.plan.width}
            await save(self.trainer, saving.directory, done, config, saving.keep, claimed=self.claimed)


async def gather_state(trainer: Trainer) -> dict[str, torch.Tensor] | None:
    """Every parameter and persistent buffer by name on rank 0; None on other ranks.

    All ranks call this between two steps. A tensor comes from its first holder.

    Cost: one message a tensor to rank 0, which holds the whole model in memory.
    """
    actor, local = trainer.context.actor, trainer.local
    own = {name: local.tensors[name].detach().cpu() for name in local.state_names}
    if actor.rank:
        actor.tell(0, ("state", "names"), note=list(own))
        for name, tensor in own.items():
            actor.tell(0, ("state", name), tensor)
        return None
    found = {name: tensor.clone() for name, tensor in own.items()}
    for rank in range(1, actor.transport.world_size):
        names = (await actor.receive(rank, ("state", "names"))).note
        for name in names:
            found[name] = (await actor.receive(rank, ("state", name))).blocks[0].torch()
    return found
