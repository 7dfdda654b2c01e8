"""A forward in float16: the loss scale is that of torch's own scaler, in every arrangement."""

from itertools import pairwise

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.state.checkpoints.trainer_state import SaveTarget, load, save
from pipelined.training.segments import loss_scale
from pipelined.training.segments.loss_scale import INITIAL_SCALE
from tests.numerics.plain import Case
from tests.numerics.trained import on_every_rank

STEPS, ROWS, WIDTH, PARTS = 14, 8, 6, 4


def layers():
    torch.manual_seed(0)
    linear = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
    return nn.Sequential(next(linear), nn.Tanh(), next(linear), next(linear))


def batches():
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randn(2, ROWS, WIDTH, generator=generator)) for _ in range(STEPS)]


def large(outputs, targets):
    """A loss with gradients that overflow in float16 at the first scales."""
    return 40.0 * nn.functional.mse_loss(outputs, targets)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def plain():
    """A plain loop with torch's autocast and scaler: losses, scales, the steps that were skipped, and parameters."""
    module, scaler = layers(), torch.amp.GradScaler("cpu", growth_interval=5)
    optimizer, losses, scales, skipped = adam(module.parameters()), [], [], []
    for inputs, targets in batches():
        scales.append(scaler.get_scale())
        parts, total = zip(inputs.chunk(PARTS), targets.chunk(PARTS), strict=True), 0.0
        for x, y in parts:
            with torch.autocast("cpu", torch.float16):
                loss = large(module(x), y)
            scaler.scale(loss / PARTS).backward()
            total += loss.item()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(total / PARTS)
        skipped.append(scaler.get_scale() < scales[-1])
    return losses, scales, skipped, module.state_dict()


@pytest.mark.parametrize(
    ("schedule", "depth", "width"), [("gpipe", 1, 1), ("one_f_one_b", 2, 2), ("zb_h1", 4, 1), ("chimera", 2, 1)]
)
def test_scales_and_skips_match_torch_gradscaler(monkeypatch, schedule, depth, width):
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 5)
    losses, scales, skipped, parameters = plain()
    assert any(skipped) and any(after > before for before, after in pairwise(scales)), "else the case shows nothing"
    reports = []
    trained = pp.train(
        layers(), batches(), loss=large, optimizer=adam, schedule=schedule, depth=depth, width=width,
        microbatches=PARTS // width, autocast=torch.float16, transport="local", report=reports.append,
    )  # fmt: skip
    assert [report.loss_scale for report in reports] == scales
    assert [report.skipped for report in reports] == skipped
    assert trained.losses == pytest.approx(losses, rel=2e-3)
    for name, value in parameters.items():
        assert trained.state[name] == pytest.approx(value, rel=5e-3, abs=5e-3)


def trained(scale, steps=3):
    """The parameters after some steps in float32, with every loss multiplied by a scale."""

    async def train(trainer, transport):
        trainer.loss_scale.dynamic, trainer.loss_scale.value = scale != 1.0, scale
        for step in range(steps):
            await trainer.step(step)
        return {name: tensor.detach().clone() for name, tensor in trainer.local.parameters.items()}

    return on_every_rank(Case("chimera", 2, 2, 4, dropout=0.1), train)


def test_a_scale_rounds_nothing():
    """Powers of two are exact, as long as nothing is so small or so large that float32 cannot hold it."""
    for ours, plain in zip(trained(INITIAL_SCALE), trained(1.0), strict=True):
        assert all(torch.equal(tensor, plain[name]) for name, tensor in ours.items())


def test_the_scale_is_saved_and_loaded(tmp_path):
    async def begin(trainer, transport):
        trainer.loss_scale.record(1.0, float("inf"))
        trainer.loss_scale.record(1.0, 1.0)
        await save(trainer, 1, SaveTarget(tmp_path, keep=1))

    async def go_on(trainer, transport):
        assert await load(trainer, tmp_path) == 1
        return trainer.loss_scale.state

    half = {"autocast": torch.float16}
    on_every_rank(Case("one_f_one_b", 2, 1, 2), begin, **half)
    assert on_every_rank(Case("gpipe", 1, 2, 1), go_on, **half) == [{"loss_scale": [INITIAL_SCALE / 2, 1]}] * 2
    assert on_every_rank(Case("gpipe", 1, 1, 2), go_on) == [{}]
