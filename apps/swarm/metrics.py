"""What became of each step, for people and programs: a line each, and a JSON object each in a file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from apps.common.json_lines import append
from pipelined.membership.view import MembershipView
from pipelined.swarm.records import Head

STEP = "step "
"""What a line that tells of a step begins with."""


@dataclass(frozen=True)
class StepLog:
    """One process's account of the steps that it sees taken.

    Args:
        due: whether the parameters of a head are still to be evaluated.
        rate: the learning rate of a step.
        tokens: of a step.
        metrics: a file to append to; keys as `python -m apps.gpt2 --metrics` has them, with `peers` by stage.
    """

    view: MembershipView
    due: Callable[[Head], bool]
    rate: Callable[[int], float]
    tokens: int
    metrics: Path | None
    say: Callable[[str], None]

    async def follow(self) -> None:
        """Tell of every step, until cancelled."""
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
        """Tell of a head that was not stepped to."""
        head = self.view.head
        if head.step and not head.was_summed:
            self.say(f"{how} step {head.step}, which all stages had saved")
        if told := await self._evaluated(head, head.step):
            self._write({"step": head.step, **told})

    async def _evaluated(self, head: Head, step: int) -> dict[str, float]:
        """What validation data came to there, if it is evaluated: known before the next step is."""
        if not self.due(head):
            return {}
        await self.view.wait_for(lambda: not self.due(head) or self.view.head != head)
        if self.due(head):  # all went back meanwhile
            return {}
        self.say(f"step {step}: eval {self.view.evaluated.loss:.4f}")
        return {"eval_loss": self.view.evaluated.loss}

    def _row(self, head: Head, seconds: float) -> dict[str, Any]:
        return {
            "step": head.step - 1,
            "loss": head.loss,
            "grad_norm": head.norm,
            "lr": self.rate(head.step - 1),
            "tokens": self.tokens,
            "tokens_per_s": self.tokens / seconds,
            "step_s": seconds,
            "peers": [len(names) for names in head.members],
        }

    def _write(self, row: Mapping[str, Any]) -> None:
        if self.metrics is not None:
            append(self.metrics, row)
