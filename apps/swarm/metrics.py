"""The log of a trainer's steps: a line for each on the terminal, and a JSON object for each in a file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from apps.common.json_lines import append
from pipelined.swarm.processes import TrainerProcess
from pipelined.swarm.records import Head
from pipelined.swarm.view import SwarmView
from pipelined.training.optimizer import OptimizerConfig

STEP = "step "
"""The beginning of a line about a step."""


@dataclass(frozen=True)
class StepLog:
    """The steps as one trainer sees them committed.

    Args:
        optimizer_config: the learning rate of each step.
        tokens: of a step.
        metrics: a file to append to; keys as `python -m apps.gpt2 --metrics` has them, with `peers` by stage.
    """

    trainer: TrainerProcess
    optimizer_config: OptimizerConfig
    tokens: int
    metrics: Path | None
    say: Callable[[str], None]

    @property
    def view(self) -> SwarmView:
        return self.trainer.view

    async def follow(self) -> None:
        """Log every step, until cancelled."""
        await self.view.wait_for(lambda: self.view.head is not None)
        await self._begin("goes on from")
        step, began = self.view.head.step, monotonic()
        while True:
            await self.view.wait_for(lambda step=step: self.view.head.step != step)
            head, now = self.view.head, monotonic()
            if head.step < step or not head.was_summed:
                step, began = head.step, now
                await self._begin("went back to")
                continue
            taken, step = head.step - step, head.step
            row, began = self._row(head, (now - began) / taken), now
            self.say(
                f"{STEP}{row['step']}: loss {row['loss']:.4f}, norm {row['grad_norm']:.3f}, "
                f"{row['tokens_per_s']:.0f} tokens/s, peers {'+'.join(map(str, row['peers']))}"
            )
            self._write({**row, **await self._evaluated(head, row["step"])})

    async def _begin(self, how: str) -> None:
        """Log a head that no step led to."""
        head = self.view.head
        if head.step and not head.was_summed:
            self.say(f"{how} step {head.step}, which all stages had saved")
        if loss := await self._evaluated(head, head.step):
            self._write({"step": head.step, **loss})

    async def _evaluated(self, head: Head, step: int) -> dict[str, float]:
        """The validation loss of this head, if it is evaluated; it is known before the next step is committed."""
        if not self.trainer.is_to_evaluate(head):
            return {}
        await self.view.wait_for(lambda: not self.trainer.is_to_evaluate(head) or self.view.head != head)
        if self.trainer.is_to_evaluate(head):  # the swarm went back meanwhile
            return {}
        self.say(f"step {step}: eval {self.view.evaluated.loss:.4f}")
        return {"eval_loss": self.view.evaluated.loss}

    def _row(self, head: Head, seconds: float) -> dict[str, Any]:
        return {
            "step": head.step - 1,
            "loss": head.loss,
            "grad_norm": head.norm,
            "lr": self.optimizer_config.rate(head.step - 1),
            "tokens": self.tokens,
            "tokens_per_s": self.tokens / seconds,
            "step_s": seconds,
            "peers": [len(names) for names in head.members],
        }

    def _write(self, row: Mapping[str, Any]) -> None:
        if self.metrics is not None:
            append(self.metrics, row)
