"""The loop of one rank: its steps, what happens between them, and its end at the last step or on a stop request."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from apps.common.flags import RunFlags
from apps.common.report import Report
from pipelined.process.stop_request import StopRequest
from pipelined.programs.plan import Plan
from pipelined.training.step_report import StepReport


class TrainedRank(Protocol):
    """One rank that trains. All ranks make the same calls in the same order."""

    async def train(
        self, steps: range, stopping: Callable[[], bool], on_step: Callable[[StepReport], None], /
    ) -> StepReport:
        """Train a segment of steps. Returns the report of the last; `on_step` is called with those before."""

    async def digest(self) -> str:
        """A digest of all parameters, on rank 0; "" elsewhere."""

    async def save(self, directory: Path, done: int, keep: int) -> Path:
        """Save the state after some steps; returns the checkpoint's path on rank 0."""

    async def begin_save(self, directory: Path, done: int, keep: int) -> None:
        """Copy the state, and save it while the rank trains."""


@dataclass(frozen=True)
class Loop:
    """The loop of one rank.

    Args:
        stop: set when this process receives a stop request.
        evaluate: the mean loss over held-out data after some steps.
    """

    config: RunFlags
    plan: Plan
    rank: TrainedRank
    report: Report
    stop: StopRequest
    evaluate: Callable[[int], Awaitable[float]]

    async def run(self, done: int) -> float | None:
        """Train to the last step, and save.

        Args:
            done: steps done before.
        Returns: the loss over held-out data after the last step; None: the run ended on a stop request.
        """
        config, loss = self.config, None
        while done < config.steps:
            span = self.plan.segment(done, config.steps, config.eval_every, config.save_every, config.digest)
            result = await self.rank.train(
                span, lambda: self.stop.requested, lambda earlier: self.report.step(earlier, None)
            )
            done = result.step + 1
            if result.stop and done < config.steps:
                await self._end_early(result)
                return None
            loss = await self._between(result)
        self.report.compare_with_plan()
        if loss is None:
            loss = await self.evaluate(done)
            self.report.evaluated(done, loss)
        await self._save(done)
        return loss

    async def _between(self, result: StepReport) -> float | None:
        """Evaluate, report and save, as is due after a step. Returns the loss of the evaluation, if there was one."""
        config, done = self.config, result.step + 1
        is_last = done == config.steps
        loss = await self.evaluate(done) if is_last or is_due(done, config.eval_every) else None
        self.report.step(result, loss, await self.rank.digest() if is_due(done, config.digest) else "")
        if config.checkpoint is not None and is_due(done, config.save_every) and not is_last:
            save = self.rank.begin_save if config.async_save else self.rank.save
            await save(config.checkpoint, done, config.keep)
        return loss

    async def _end_early(self, result: StepReport) -> None:
        self.report.step(result, None)
        self.report.compare_with_plan()
        where = await self._save(result.step + 1) or "nowhere: give --checkpoint to keep the work"
        self.report.say(f"stopped on request after step {result.step + 1}; saved to {where}")

    async def _save(self, done: int) -> Path | None:
        config = self.config
        return None if config.checkpoint is None else await self.rank.save(config.checkpoint, done, config.keep)


def is_due(done: int, every: int) -> bool:
    """Whether something that happens every `every` steps (0: never) happens after `done` steps."""
    return every > 0 and done % every == 0
