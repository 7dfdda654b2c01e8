"""What became of each step, for people and programs: a line each, and a JSON object each in a file."""

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from pipelined.swarm.membership import Roster
from pipelined.swarm.records import Head


async def follow_steps(
    roster: Roster, rate: Callable[[int], float], tokens: int, metrics: Path | None, say: Callable[[str], None]
) -> None:
    """Tell of every step that this process sees taken, until cancelled.

    Args:
        rate: the learning rate of a step.
        tokens: of a step.
        metrics: a file to append to; keys as `python -m apps.gpt2 --metrics` has them, with `peers` by stage.
    """
    await roster.wait_for(lambda: roster.head is not None)
    if roster.head.step and not roster.head.members:
        say(f"goes on from step {roster.head.step}, which all stages had saved")
    step, began = roster.head.step, monotonic()
    while True:
        await roster.wait_for(lambda step=step: roster.head.step != step)
        head, now = roster.head, monotonic()
        if head.step < step or not head.members:
            say(f"went back to step {head.step}, which all stages had saved")
            step, began = head.step, now
            continue
        taken, step = head.step - step, head.step
        line = _line(head, rate, tokens, (now - began) / taken)
        began = now
        say(
            f"step {line['step']}: loss {line['loss']:.4f}, norm {line['grad_norm']:.3f}, "
            f"{line['tokens_per_s']:.0f} tokens/s, peers {'+'.join(map(str, line['peers']))}"
        )
        if metrics is not None:
            with metrics.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _line(head: Head, rate: Callable[[int], float], tokens: int, seconds: float) -> dict[str, object]:
    return {
        "step": head.step - 1,
        "loss": head.loss,
        "grad_norm": head.norm,
        "lr": rate(head.step - 1),
        "tokens": tokens,
        "tokens_per_s": tokens / seconds,
        "step_s": seconds,
        "peers": [len(names) for names in head.members],
    }
