"""The loop of one rank: its steps, the saves between them, and its end at the last step or on a stop request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipelined.programs.plan import Plan
from pipelined.training.segments.step_report import StepReport


class TrainableRank(Protocol):
    """One rank that trains. All ranks make the same calls in the same order."""

    async def train(
        self, steps: range, stopping: Callable[[], bool], on_step: Callable[[StepReport], None], /
    ) -> StepReport:
        """Train a segment of steps. Returns the report of the last; `on_step` is called with those before."""

    async def save(self, directory: Path, done: int, keep: int) -> Path:
        """Save the state after some steps; returns the checkpoint's path on rank 0."""

    async def start_save(self, directory: Path, done: int, keep: int) -> None:
        """Copy the state, and save it while the rank trains."""


class LoopHooks(Protocol):
    """What a program does between the steps of its loop, on every rank."""

    async def prepare(self, done: int) -> None:
        """Prepare the segment that follows the steps done."""

    def step(self, report: StepReport) -> None:
        """Take the report of a step inside a segment: the rank goes on to the next one meanwhile."""

    async def drained(self, report: StepReport, stopped: bool) -> None:
        """Take the report of a segment's last step. Nothing is in flight, and a save that is due follows.

        Args:
            stopped: whether the run ends here on a stop request.
        """


@dataclass(frozen=True)
class SavePolicy:
    """Where the state is saved, and when besides the end.

    Args:
        directory: of checkpoints; None: nothing is saved.
        interval: save after each multiple of this number of steps; 0: only at the end.
        in_background: whether those saves are written while training continues.
        keep: the number of checkpoints to keep.
    """

    directory: Path | None
    interval: int
    in_background: bool
    keep: int


@dataclass(frozen=True)
class LoopEnd:
    """The end of a loop: the steps done, whether a stop request ended it, and the last checkpoint, on rank 0."""

    done: int
    stopped: bool
    checkpoint: Path | None


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The loop of one rank.

    Args:
        steps: the last step, exclusive.
        stopping: whether this process received a stop request.
        drains: the pipe is drained after each multiple of these numbers of steps, too; 0: of none.
    """

    rank: TrainableRank
    plan: Plan
    steps: int
    saves: SavePolicy
    stopping: Callable[[], bool]
    drains: Sequence[int] = ()

    async def run(self, done: int, hooks: LoopHooks) -> LoopEnd:
        """Train to the last step or a stop request, and save.

        Args:
            done: steps done before.
        """
        saves = self.saves
        stopped = False
        while done < self.steps and not stopped:
            await hooks.prepare(done)
            span = self.plan.segment(done, self.steps, saves.interval, *self.drains)
            report = await self.rank.train(span, self.stopping, hooks.step)
            done = report.step + 1
            stopped = report.stop and done < self.steps
            await hooks.drained(report, stopped)
            goes_on = done < self.steps and not stopped
            if saves.directory and goes_on and is_due(done, saves.interval):
                save = self.rank.start_save if saves.in_background else self.rank.save
                await save(saves.directory, done, saves.keep)
        checkpoint = await self.rank.save(saves.directory, done, saves.keep) if saves.directory else None
        return LoopEnd(done, stopped, checkpoint)


def is_due(done: int, interval: int) -> bool:
    """Whether something that happens after each `interval` steps (0: never) happens after `done` steps."""
    return interval > 0 and done % interval == 0
