"""A rank that trains without a flush, as a test sees it: what it told, traced and holds, and the comparison.

The comparison is with `delayed`, the plain loop.
"""

from dataclasses import dataclass

import numpy as np
import torch

from pipelined.aio.clock import RealClock
from pipelined.traces.tracer import Events, Tracer
from pipelined.training.segments.step_report import StepReport
from tests.numerics.delayed import OPTIMIZER
from tests.numerics.trained import opened


@dataclass
class Outcome:
    """What one rank told and traced, and the weights and optimizer state it holds at the end."""

    reports: list[StepReport]
    events: Events
    weights: dict[str, torch.Tensor]
    state: dict[str, dict[str, torch.Tensor]]


def segments(*several):
    """Train these segments one after another."""

    async def story(trainer):
        reports = []
        for steps in several:
            reports.append(await trainer.train(steps, lambda: False, reports.append))
        return reports

    return story


async def rank(case, transport, story, optimizer_settings=OPTIMIZER, orders=None):
    tracer = Tracer(RealClock().now)
    async with opened(transport, case.job(optimizer_settings=optimizer_settings), tracer, orders) as trainer:
        reports = await story(trainer)
    weights = {name: p.detach() for name, p in trainer.local.parameters.items()}
    return Outcome(reports, tracer.events(), weights, {name: trainer.state_of(name) for name in weights})


def assert_same(expected, outcome, tolerance=1e-12):
    np.testing.assert_allclose([r.loss for r in outcome.reports], expected.losses, rtol=tolerance)
    np.testing.assert_allclose([r.grad_norm for r in outcome.reports], expected.norms, rtol=tolerance)
    for name, value in outcome.weights.items():
        largest = float(expected.weights[name].abs().max())
        error = float((value - expected.weights[name]).abs().max())
        assert error <= tolerance * largest, f"{name}: {error:.2e} beside {largest:.2e}"
