"""The log of a training's steps: a line for each on the terminal, and a JSON object for each in a file."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from apps.common.run.trackers import append
from pipelined.swarm.records.committed_steps import StepCommitted, StepEvaluated, StepEvent, StepsBegan
from pipelined.swarm.records.steps import Head
from pipelined.training.optimizer import OptimizerConfig

STEP_LINES = ("step ", "after ")
"""The beginnings of the lines about a step or an evaluation."""


class StepLog:
    """The log of the committed steps; a context manager, which writes the last row at its end.

    Args:
        optimizer_settings: the learning rate of each step.
        tokens: tokens a step.
        metrics: a file to append to; keys as `python -m apps.gpt2 --metrics` has them, with `peers` by stage.
    """

    def __init__(
        self, optimizer_settings: OptimizerConfig, tokens: int, metrics: Path | None, say: Callable[[str], None]
    ):
        self._optimizer_settings = optimizer_settings
        self._tokens = tokens
        self._metrics = metrics
        self._say = say
        self._row: Mapping[str, Any] | None = None  # of the last step, until its loss on validation data is known

    def __enter__(self) -> "StepLog":
        return self

    def __exit__(self, *error: object) -> None:
        self._write()

    def log(self, event: StepEvent) -> None:
        """Log a commit, a rollback or an evaluation."""
        match event:
            case StepEvaluated(head, loss):
                when = f"step {self._row['step']}" if self._row else f"after {head.step} steps"
                self._say(f"{when}: eval {loss:.4f}")
                self._row = {**(self._row or {"step": head.step}), "eval_loss": loss}
                self._write()
            case StepsBegan(head, rolled_back):
                self._write()
                if head.step and not head.was_summed:
                    how = "rolled back to" if rolled_back else "continues from"
                    self._say(f"{how} step {head.step}, which all stages had saved")
            case StepCommitted(head, seconds, evaluates):
                self._write()
                self._row = self._log_step(head, seconds)
                if not evaluates:
                    self._write()

    def _log_step(self, head: Head, seconds: float) -> Mapping[str, Any]:
        """Print the line of a step; returns its row."""
        row = {
            "step": head.step - 1,
            "loss": head.loss,
            "grad_norm": head.norm,
            "lr": self._optimizer_settings.rate(head.step - 1),
            "tokens": self._tokens,
            "tokens_per_s": self._tokens / seconds,
            "step_s": seconds,
            "peers": [len(names) for names in head.members],
        }
        self._say(
            f"step {head.step - 1}: loss {head.loss:.4f}, norm {head.norm:.3f}, "
            f"{self._tokens / seconds:.0f} tokens/s, peers {'+'.join(str(len(names)) for names in head.members)}"
        )
        return row

    def _write(self) -> None:
        if self._metrics is not None and self._row is not None:
            append(self._metrics, self._row)
        self._row = None
