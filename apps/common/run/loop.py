"""What a program does in the loop of one rank: evaluate, report each step, and say how the run ended."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from apps.common.flags.run_flags import RunFlags
from apps.common.run.report import Report
from pipelined.api.loop import Loop, LoopHooks, SavePolicy, TrainableRank, is_due
from pipelined.process.stop_request import StopRequest
from pipelined.programs.plan import Plan
from pipelined.training.segments.step_report import StepReport


class DigestedRank(TrainableRank, Protocol):
    """A rank that has a digest of its parameters."""

    async def digest(self) -> str:
        """A digest of all parameters, on rank 0; "" elsewhere."""


class ReportedLoop(LoopHooks):
    """The loop of one rank, with the evaluations, digests and saves of its flags.

    Args:
        stop: set when this process receives a stop request.
        evaluate: the mean loss over held-out data after some steps.
    """

    def __init__(
        self,
        config: RunFlags,
        plan: Plan,
        rank: DigestedRank,
        report: Report,
        *,
        stop: StopRequest,
        evaluate: Callable[[int], Awaitable[float]],
    ):
        saves = SavePolicy(config.checkpoint, config.save_every, config.async_save, config.keep)
        self._loop = Loop(
            rank=rank,
            plan=plan,
            steps=config.steps,
            saves=saves,
            stopping=lambda: stop.requested,
            drains=(config.eval_every, config.digest),
        )
        self._config = config
        self._rank = rank
        self._report = report
        self._evaluate = evaluate
        self._loss: float | None = None

    async def run(self, done: int) -> float | None:
        """Train to the last step, and save.

        Args:
            done: steps done before.
        Returns: the loss over held-out data after the last step; None: the run ended on a stop request.
        """
        end = await self._loop.run(done, self)
        self._report.compare_with_plan()
        if end.stopped:
            where = end.checkpoint or "nowhere: give --checkpoint to keep the work"
            self._report.say(f"stopped on request after {end.done} steps; saved to {where}")
            return None
        if self._loss is None:
            self._loss = await self._evaluate(end.done)
            self._report.evaluation(end.done, self._loss)
        return self._loss

    async def prepare(self, done: int) -> None:
        """Nothing: the data of a step is read in it."""

    def step(self, report: StepReport) -> None:
        self._report.step(report, None)

    async def drained(self, report: StepReport, stopped: bool) -> None:
        """Evaluate, and report the step, as is due after it."""
        if stopped:
            self.step(report)
            return
        config = self._config
        done = report.step + 1
        is_evaluated = done == config.steps or is_due(done, config.eval_every)
        self._loss = await self._evaluate(done) if is_evaluated else None
        self._report.step(report, self._loss, await self._rank.digest() if is_due(done, config.digest) else "")
