"""The report of rank 0 while a job trains: a bar, a line every ten steps, one JSON object a step."""

import resource
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Self

from rich import progress
from rich.console import Console

from apps.common.run.trackers import Tracker, append
from pipelined.process.reporting.progress import Progress
from pipelined.training.segments.step_report import StepReport

STEPS_A_LINE = 10
"""Steps between two lines."""
UNITS = {"tokens": "tok", "images": "images"}
"""What a step is trained on, as a line shows it."""
DRIFT = 0.1
"""Share of a planned step by which the measured one may differ before the plan is called wrong."""


class Report:
    """The progress of one job, on rank 0.

    Args:
        is_shown: whether anything is printed.
        first_step: the step it begins with (not 0 after a resume).
        steps: the last step, exclusive.
        tokens: tokens a step, or what `unit` says.
        metrics: the file that the JSON lines go to; None writes none.
        predicted_s: seconds that a plan predicts for a step; None without a plan.
        unit: what is trained on, one of `UNITS`.
        trackers: take the same rows as the file.

    Attributes:
        planned_bytes: payload that all ranks should send in a step; None where that is not known.
    """

    def __init__(
        self,
        is_shown: bool,
        *,
        first_step: int,
        steps: int,
        tokens: int,
        metrics: Path | None,
        predicted_s: float | None = None,
        unit: str = "tokens",
        trackers: Sequence[Tracker] = (),
    ):
        self._unit = unit
        self._first_step = first_step
        self._steps = steps
        self._tokens = tokens
        self._metrics = metrics if is_shown else None
        self._predicted_s = predicted_s
        self._step_seconds = list[float]()
        self._trackers = trackers
        self.planned_bytes: int | None = None
        self._console = Console(quiet=not is_shown)
        self._bar = bar(self._console)
        self._task = self._bar.add_task("starting", total=steps, completed=first_step)

    def __enter__(self) -> Self:
        self._write()
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def step(self, report: StepReport, eval_loss: float | None, digest: str = "") -> None:
        """Report a finished step.

        Args:
            digest: of all parameters after it; "" without one.
        """
        rate = self._tokens / report.step_s
        self._step_seconds.append(report.step_s)
        self._bar.update(
            self._task,
            advance=1,
            description=f"loss {report.loss:.4f}  {rate:,.0f} {UNITS[self._unit]}/s  idle {report.idle_fraction:.0%}",
        )
        self._write(self._row(report, rate, eval_loss) | ({"digest": digest} if digest else {}))
        done = report.step + 1
        if report.skipped:
            self.say(f"step {done} skipped: its gradients overflowed at a loss scale of {report.loss_scale:g}")
        if done % STEPS_A_LINE == 0 or done == self._steps or report.step == self._first_step or eval_loss is not None:
            self._line(report, rate, eval_loss)
        if digest:
            self.say(f"digest of all parameters after {done} steps: {digest}")

    def evaluation(self, done: int, loss: float) -> None:
        """Report an evaluation that no step of training preceded, after `done` steps."""
        self._write({"step": done, "eval_loss": loss})

    def _write(self, *rows: Mapping[str, Any]) -> None:
        if self._metrics is not None:
            append(self._metrics, *rows)
        for tracker in self._trackers:
            for row in rows:
                tracker.write(row)

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[int, int], None]]:
        """A block that evaluates. It yields a function that takes the number of forwards done, and of how many."""
        task = self._bar.add_task("evaluating", total=None)
        lines = Progress(monotonic, self.say)

        def show(done: int, total: int) -> None:
            self._bar.update(task, completed=done, total=total)
            if self._bar.disable:
                lines.show(f"evaluating: {done / total:.0%}")

        yield show
        self._bar.remove_task(task)

    def _row(self, report: StepReport, rate: float, eval_loss: float | None) -> dict[str, Any]:
        row: dict[str, Any] = {
            "step": report.step,
            "loss": report.loss,
            "grad_norm": None if report.skipped else report.grad_norm,
            "lr": report.lr,
            self._unit: self._tokens,
            f"{self._unit}_per_s": rate,
            "step_s": report.step_s,
            "idle_fraction": report.idle_fraction,
        }
        if self.planned_bytes is not None:
            row |= {"bytes": report.nbytes, "planned_bytes": self.planned_bytes}
        if report.loss_scale is not None:
            row |= {"loss_scale": report.loss_scale, "skipped": report.skipped}
        if report.staleness:
            row["staleness"] = report.staleness
        if self._predicted_s is not None:
            row["planned_step_s"] = self._predicted_s
        return row if eval_loss is None else {**row, "eval_loss": eval_loss}

    def _line(self, report: StepReport, rate: float, eval_loss: float | None) -> None:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        unit = UNITS[self._unit]
        remaining_s = (self._steps - report.step - 1) * report.step_s
        text = (
            f"step {report.step + 1:>5}/{self._steps}  loss {report.loss:.4f}  norm {report.grad_norm:.3f}  "
            f"lr {report.lr:.2e}  {rate:,.0f} {unit}/s  idle {report.idle_fraction:.0%}  {memory:,.0f} MiB  "
            f"eta {remaining_s:.0f} s"
        )
        self.say(text if eval_loss is None else f"{text}  eval {eval_loss:.4f}")

    def compare_with_plan(self) -> None:
        """Compare the steps with the prediction of the plan, if a plan is followed."""
        if self._predicted_s is not None and self._step_seconds:
            self.say(compare_with_prediction(self._predicted_s, self._step_seconds))

    def say(self, text: str) -> None:
        """Print above the bar, without wrapping."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def bar(console: Console) -> progress.Progress:
    """A progress bar with the work, its share done and the time left, on a terminal; elsewhere nothing."""
    columns = progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn()
    description = progress.TextColumn("{task.description}")
    return progress.Progress(description, *columns, console=console, disable=not console.is_terminal, transient=True)


def compare_with_prediction(predicted_s: float, step_seconds: Sequence[float]) -> str:
    """The difference of the median step and the prediction, in words.

    The first step sets up everything, so it is left out where there are others.
    """
    step = statistics.median(step_seconds[1:] or step_seconds)
    drift = step / predicted_s - 1
    text = f"a step took {step * 1e3:.1f} ms, planned {predicted_s * 1e3:.1f} ms: {drift:+.0%}"
    if abs(drift) <= DRIFT:
        return text
    return f"{text}; the plan's costs are not those of this run: plan again where it runs, with nothing else running"
