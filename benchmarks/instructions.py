"""What an instruction costs beyond its work: `python -m benchmarks.instructions`.

One process trains a small GPT-2 in two ways, step by step in turns: by the trainer of a rank, and by a plain loop over
the same module, batches and optimizer. The losses of each step must agree. The difference of both times is the cost of
instructions, messages excepted: thread, event loop and coroutines.
"""

import asyncio
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from benchmarks.harness.flags import flags
from benchmarks.harness.ranks import spread
from benchmarks.harness.results import Reported, tell
from pipelined.actors.actor import Actor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock
from pipelined.planner.trial import RandomTokens
from pipelined.programs.plan import Plan
from pipelined.traces.tracer import NullTracer
from pipelined.training.assemble import build_rank
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from pipelined.training.optimizer import OptimizerConfig, update
from pipelined.training.rank_trainer import RankTrainer
from transports.aio.event_loop import new_event_loop
from transports.local import world

OPTIMIZER = OptimizerConfig(lr=1e-4, steps=100_000)
AGREE = 1e-5
"""Largest relative difference of the losses: float32 sums of gradients in one order, norms in another."""
WARM_UP = 10


@dataclass(frozen=True)
class Options(Reported):
    """Time a rank's steps beside a plain loop's."""

    layers: int = 2
    """Transformer blocks."""
    d_model: int = 16
    """Width of the model."""
    heads: int = 2
    """Attention heads."""
    vocab: int = 256
    """Vocabulary."""
    seq: int = 16
    """Tokens a sequence."""
    microbatch: int = 1
    """Sequences in a microbatch (B)."""
    microbatches: int = 16
    """N."""
    rounds: int = 200
    """Steps of each kind, in turn."""
    pause: float = 0.0
    """Seconds of rest before each step: a core that slept is slower."""


class PlainLoop:
    """The same steps without a runtime."""

    def __init__(self, model: GPT2, feed: RandomTokens, microbatches: int):
        self._model, self._feed, self._microbatches = model, feed, microbatches
        self._module = model.build(range(model.layers), torch.float32, torch.device("cpu"), seed=0)
        self._parameters = dict(self._module.named_parameters())
        self._optimizer = OPTIMIZER.build(self._parameters)

    def step(self, number: int) -> float:
        """Train one step; its loss."""
        losses = []
        for microbatch in range(self._microbatches):
            x, targets = self._feed.inputs(number, microbatch), self._feed.targets(number, microbatch)
            loss = self._model.loss(self._module(x), targets)
            (loss / self._microbatches).backward()
            losses.append(loss.item())
        gradients = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients))
        update(self._optimizer, OPTIMIZER.rate(number), min(1.0, OPTIMIZER.clip / norm))
        self._optimizer.zero_grad()
        return sum(losses) / len(losses)


async def bench(options: Options) -> dict[str, list[float]]:
    """The seconds of both kinds of steps.

    Raises:
        ValueError: the losses of a step differ.
    """
    sizes = ModelConfig(options.layers, options.d_model, options.heads, options.vocab, options.seq, dropout=0.0)
    feed = RandomTokens(options.vocab, (options.microbatch, options.seq))
    plan = Plan("one_f_one_b", 1, 1, options.microbatch, options.microbatches)
    job = JobDescription(
        model=GPT2(sizes), plan=plan, feed=feed, optimizer_settings=OPTIMIZER,
        numerics=Numerics(), sequence=options.seq, seed=0,
    )  # fmt: skip
    (transport,) = world(1)
    executor, seconds = TorchExecutor("cpu", RealClock(), transport.set_computing), {"plain": [], "ours": []}
    try:
        async with Actor(transport) as actor:
            trainer = build_rank(actor, job, executor=executor, tracer=NullTracer())
            loop = PlainLoop(GPT2(sizes), feed, options.microbatches)
            for number in range(WARM_UP + options.rounds):
                await _round(number, options, loop, trainer, seconds)
    finally:
        executor.close()
    return {name: taken[WARM_UP:] for name, taken in seconds.items()}


async def _round(
    number: int, options: Options, loop: PlainLoop, trainer: RankTrainer, seconds: dict[str, list[float]]
) -> None:
    """One step of each kind; the one that goes first changes every round."""
    losses = {}
    for name in ("plain", "ours") if number % 2 else ("ours", "plain"):
        await asyncio.sleep(options.pause)
        start = time.perf_counter()
        losses[name] = loop.step(number) if name == "plain" else (await trainer.step(number)).loss
        seconds[name].append(time.perf_counter() - start)
    if abs(losses["ours"] - losses["plain"]) > AGREE * losses["plain"]:
        raise ValueError(f"step {number}: losses differ ({losses['ours']!r}, plain loop: {losses['plain']!r})")


def as_row(options: Options, seconds: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, and the cost of an instruction with its quartiles."""
    beyond = [ours - plain for ours, plain in zip(seconds["ours"], seconds["plain"], strict=True)]
    lower, middle, upper = spread([one / (2 * options.microbatches) for one in beyond])
    medians = {f"{name}_s": statistics.median(taken) for name, taken in seconds.items()}
    return {**asdict(options), **medians, "instruction_s": middle, "quartiles_s": [lower, upper]}


def main() -> int:
    """Read the flags, time, tell."""
    options = flags(Options, "instructions")
    torch.set_num_threads(1)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        row = as_row(options, runner.run(bench(options)))
    lower, upper = (f"{one * 1e3:.3f}" for one in row["quartiles_s"])
    text = (
        f"{options.layers} layers of width {options.d_model}, {options.microbatches} microbatches: a step of "
        f"{row['ours_s'] * 1e3:.2f} ms beside {row['plain_s'] * 1e3:.2f} ms of a plain loop: "
        f"{row['instruction_s'] * 1e3:.3f} ms an instruction ({lower}-{upper})"
    )
    tell(options, row, lambda: text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
