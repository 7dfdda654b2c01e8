"""The plain single-process loop that every arrangement is held against, and the comparison.

It uses none of the runtime: one module, one loop over microbatches, torch's own AdamW and clipping.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from pipelined.programs.plan import Plan
from pipelined.random.keyed_random import KeyedRandom, drawing_from
from pipelined.traces.tracer import Tracer
from pipelined.training.job.description import JobDescription
from pipelined.training.job.numerics import Numerics
from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.rank_trainer import RankTrainer
from pipelined.training.segments.replay import Order
from tests.numerics.trained import opened
from transports import Transport

SEQUENCE = 6
OPTIMIZER = OptimizerConfig(lr=1e-2, steps=5, warmup=2, clip=0.5)


class AdamW(torch.optim.AdamW):
    """Torch's own; what torch wraps around these would import its compiler, for as long as all of torch takes."""

    add_param_group = inspect.unwrap(torch.optim.AdamW.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.AdamW.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


@dataclass(frozen=True)
class Case:
    """One arrangement to be compared with the plain loop."""

    schedule: str
    depth: int
    width: int
    microbatches: int
    pipes: int = 0
    dropout: float = 0.0
    recompute: bool = False
    tied: bool = True
    layers: int = 6
    scale: str = "direct"
    chunks: int = 1

    @property
    def parts(self) -> int:
        """Backward halving cuts microbatches in two, so that the halves have the feed's size."""
        return 2 if self.scale == "backward-halving" else 1

    @property
    def plan(self) -> Plan:
        microbatch = 2 * self.parts
        knobs = {"pipes": self.pipes, "chunks": self.chunks, "scale": self.scale}
        return Plan(self.schedule, self.depth, self.width, microbatch, self.microbatches, knobs)

    @property
    def model(self) -> GPT2:
        return GPT2(
            ModelConfig(
                layers=self.layers,
                d_model=8,
                heads=2,
                vocab=13,
                positions=SEQUENCE,
                dropout=self.dropout,
                tied=self.tied,
            )
        )

    def job(
        self,
        dtype: torch.dtype = torch.float64,
        optimizer_settings: OptimizerConfig = OPTIMIZER,
        **numerics: Any,
    ) -> JobDescription:
        """The same, as ranks train it."""
        return JobDescription(
            model=self.model,
            plan=self.plan,
            feed=Feed(),
            optimizer_settings=optimizer_settings,
            numerics=Numerics(dtype=dtype, recompute=self.recompute, **numerics),
            sequence=SEQUENCE,
            seed=3,
        )


class Feed:
    """Random tokens by (step, global microbatch)."""

    def inputs(self, step: int, microbatch: int) -> torch.Tensor:
        return self._rows(step, microbatch)[:, :-1]

    def targets(self, step: int, microbatch: int) -> torch.Tensor:
        return self._rows(step, microbatch)[:, 1:]

    def _rows(self, step: int, microbatch: int) -> torch.Tensor:
        return torch.from_numpy(np.random.default_rng((step, microbatch)).integers(0, 13, (2, SEQUENCE + 1)))


@dataclass
class Outcome:
    """What a run ends with; gradients are those of its first update, clipped."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, torch.Tensor]
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)


def plain(case: Case, steps: int = 5) -> Outcome:
    """Train on one process with nothing but torch."""
    model, feed, total = case.model, Feed(), case.plan.total_microbatches
    module = model.build(range(model.layers), torch.float64, "cpu", seed=3)
    parameters = dict(module.named_parameters())
    matrices = [p for p in parameters.values() if p.dim() >= 2]
    vectors = [p for p in parameters.values() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = AdamW(groups, betas=(0.9, 0.95))
    losses, norms, gradients = [], [], dict[str, torch.Tensor]()
    for step in range(steps):
        optimizer.zero_grad()
        loss = torch.zeros((), dtype=torch.float64)
        for microbatch in range(total):
            with drawing_from(KeyedRandom(3, step, microbatch)):
                logits = module(feed.inputs(step, microbatch))
            loss = loss + model.loss(logits, feed.targets(step, microbatch)) / total
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters.values(), OPTIMIZER.clip)))
        gradients = gradients or {name: p.grad.clone() for name, p in parameters.items()}
        for group in optimizer.param_groups:
            group["lr"] = OPTIMIZER.rate(step)
        optimizer.step()
        losses.append(loss.item())
    return Outcome(losses, norms, {name: p.detach() for name, p in parameters.items()}, gradients)


async def pipelined(
    case: Case,
    transport: Transport,
    steps: int = 5,
    tracer: Tracer | None = None,
    orders: Mapping[int, Order] | None = None,
) -> Outcome:
    """Train one rank of an arrangement; what it holds at the end."""
    async with opened(transport, case.job(), tracer, orders) as trainer:
        gradients = first_gradients(trainer)
        reports = [await trainer.step(step) for step in range(steps)]
    parameters = {name: p.detach() for name, p in trainer.local.parameters.items()}
    return Outcome([r.loss for r in reports], [r.grad_norm for r in reports], parameters, gradients)


def first_gradients(trainer: RankTrainer) -> dict[str, torch.Tensor]:
    """The gradients by which a rank makes its first update, by name; there when that update is made."""
    found, update, parameters = dict[str, torch.Tensor](), trainer.optimizer.step, trainer.local.parameters

    def keeping() -> None:
        if not found:
            found.update((name, p.grad.clone()) for name, p in parameters.items() if p.grad is not None)
        update()

    trainer.optimizer.step = keeping
    return found


def assert_same(expected: Outcome, got: Outcome, tolerance: float = 1e-10) -> None:
    """Losses, norms and every parameter held agree, relative to each tensor's largest element."""
    np.testing.assert_allclose(got.losses, expected.losses, rtol=tolerance)
    np.testing.assert_allclose(got.norms, expected.norms, rtol=tolerance)
    for name, value in got.parameters.items():
        largest = float(expected.parameters[name].abs().max())
        error = float((value - expected.parameters[name]).abs().max())
        assert error <= tolerance * largest, f"{name}: {error:.2e} beside {largest:.2e}"
