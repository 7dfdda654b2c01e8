"""One rank of `pipelined.train`, from its first step to its last: load, train, save, and export or gather the state."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from pipelined.actors.agree import require_equal
from pipelined.api.arranged_job import ArrangedJob
from pipelined.api.data.feed import JobFeed
from pipelined.api.loop import Loop, LoopHooks, SavePolicy
from pipelined.api.rank_session import EQUALLY, RankSession
from pipelined.errors import UsageError, require_switch, whole
from pipelined.state.checkpoints import checkpoint
from pipelined.training.segments.step_report import StepReport


@dataclass
class Trained:
    """The result of `train`, on every rank.

    Attributes:
        losses: the mean loss of each step trained in this run.
        steps: the steps done, those of earlier runs included.
        stopped: whether a stop request (SIGTERM) ended the run before its last step.
        exported: on rank 0 the file of the state, if it was exported.
    """

    losses: list[float] = field(default_factory=list)
    steps: int = 0
    stopped: bool = False
    state: dict[str, torch.Tensor] | None = field(default=None, repr=False)
    exported: Path | None = None

    def state_dict(self) -> dict[str, torch.Tensor] | None:
        """Every parameter and buffer by name, as the model's own module names them, on rank 0; None on other ranks.

        Cost: each tensor of an exported state is read from the file when it is used.
        """
        return self.state if self.exported is None else torch.load(self.exported, mmap=True, weights_only=True)


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """The steps of a job, and the directories where they begin and end.

    Args:
        steps: the steps to train, those of the resumed run included.
        resume: a checkpoint, or a directory of checkpoints, to continue from.
        export: the file for the state at the end; None: rank 0 gathers it.
        report: called on rank 0 with the report of each step.
    Raises:
        UsageError: a number is out of range.
    """

    job: ArrangedJob
    feed: JobFeed
    steps: int
    saves: SavePolicy
    resume: Path | None
    export: Path | None
    report: Callable[[StepReport], object]

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", whole("steps", self.steps, 0))
        save_every = whole("save_every", self.saves.interval, 0)
        saves = replace(self.saves, interval=save_every, keep=whole("keep", self.saves.keep))
        object.__setattr__(self, "saves", saves)
        require_switch("async_save", self.saves.in_background)
        if self.saves.interval and self.saves.directory is None:
            raise UsageError(f"save_every={self.saves.interval} saves nothing without a directory; give `checkpoint=`")
        checkpoint.require_keep(self.saves.keep)
        if not callable(self.report):
            fact = f"report is {self.report!r:.40}, which cannot be called"
            raise UsageError(f"{fact}; give a function of a step's report")

    async def train(self, rank: RankSession, stopping: Callable[[], bool]) -> Trained:
        """Train one rank to the end.

        Args:
            stopping: whether this process received a stop request.
        Raises:
            AgreedError: on every rank: they have different numbers of steps, or save, load or export differently.
        """
        await require_equal(rank.transport, "arguments of the run", self._settings(), EQUALLY)
        if self.export is not None:
            await rank.require_writable(self.export)
        if self.saves.directory is not None:
            await rank.claim(self.saves.directory, self.resume)
        is_first = rank.transport.rank == 0
        done = await self._load(rank)
        hooks = _RunHooks(self.feed, prepares=self.job.plan.flushes, report=self.report if is_first else None)
        loop = Loop(rank=rank, plan=self.job.plan, steps=self.steps, saves=self.saves, stopping=stopping)
        end = await loop.run(done, hooks)
        result = Trained(hooks.losses, end.done, end.stopped)
        if self.export is None:
            result.state = await rank.state_dict()
        else:
            await rank.export(self.export)
            result.exported = self.export if is_first else None
        return result

    def _settings(self) -> Mapping[str, str]:
        """What decides which of the calls that all ranks make together are made, in words."""
        saves = self.saves
        numbers = {
            "steps": self.steps,
            "save_every": saves.interval,
            "keep": saves.keep,
            "async_save": saves.in_background,
        }
        paths = {"checkpoint": saves.directory, "resume": self.resume, "export": self.export}
        presence = {f"{name} given": path is not None for name, path in paths.items()}
        return {name: str(value) for name, value in (numbers | presence).items()}

    async def _load(self, rank: RankSession) -> int:
        if self.resume is None:
            return 0
        done = await rank.load(self.resume)
        if done > self.steps:
            fact = f"{self.resume} is beyond the last step (saved: {done}, steps: {self.steps})"
            raise UsageError(f"{fact}; train more steps")
        await asyncio.to_thread(self.feed.skip, done)
        return done


class _RunHooks(LoopHooks):
    """Reads the data of a step before it, and keeps and reports its loss after it.

    Args:
        prepares: whether a step's batch is read before it, outside the event loop.
    """

    def __init__(self, feed: JobFeed, *, prepares: bool, report: Callable[[StepReport], object] | None):
        self.losses = list[float]()
        self._feed, self._prepares, self._report = feed, prepares, report

    async def prepare(self, done: int) -> None:
        if self._prepares:
            await asyncio.to_thread(self._feed.prepare, done)

    def step(self, report: StepReport) -> None:
        self.losses.append(report.loss)
        if self._report is not None:
            self._report(report)

    async def drained(self, report: StepReport, stopped: bool) -> None:
        self.step(report)
