"""The speed on a model's layers: known answers for work of a known duration; real layers, without a claim on time."""

import asyncio

import pytest
import torch

from apps.common.lm.models.gpt2 import UntiedGPT2
from apps.common.lm.models.gpt2_presets import PRESETS
from apps.ravnest.flags.config import RavnestConfig
from benchmarks.harness.timed_executor import TimedExecutor
from pipelined.actors.device.executor import TorchExecutor
from pipelined.aio.clock import RealClock, VirtualClock
from pipelined.measurement.measured_costs import kinds_of
from pipelined.measurement.timed.layer_speed import SpeedProbe, speed
from pipelined.planner.trial import RandomTokens
from pipelined.training.job.numerics import Numerics

MODEL = PRESETS["tiny"]
WORK = [1.0, *[60.0] * MODEL.layers, 300.0]
ALL = [True] * len(WORK)


def probe(executor):
    feed = RandomTokens(MODEL.vocab, (2, 8))
    return SpeedProbe(UntiedGPT2(MODEL), feed, (2, 8), Numerics(), executor)


@pytest.mark.virtual
async def test_the_speed_is_the_models_work_over_its_seconds():
    """Each layer takes 30 ms."""
    executor = TimedExecutor({"forward": 0.01, "backward": 0.02}, VirtualClock())
    assert await probe(executor).flops(WORK, ALL) == pytest.approx(sum(WORK) / (0.03 * len(WORK)))


@pytest.mark.virtual
async def test_layers_that_do_not_fit_are_not_built():
    executor = TimedExecutor({"forward": 0.01, "backward": 0.02}, VirtualClock())
    timer, built = probe(executor), []
    build = timer.model.build
    timer.model.build = lambda layers, *more: (built.append(layers.start), build(layers, *more))[1]
    flops = await timer.flops(WORK, [False, *[True] * MODEL.layers, False])
    assert (flops, built) == (pytest.approx(60 / 0.03), [MODEL.layers])
    assert await timer.flops(WORK, [False] * len(WORK)) == 0


def test_each_kind_counts_as_often_as_the_model_has_it():
    """Four blocks of 1 s and a head of 6 s, with the work of 10 and 100: 140 in 10 s."""
    work = [1.0, 10.0, 10.0, 10.0, 10.0, 100.0]
    kinds = kinds_of(work)
    assert speed(work, kinds, {kinds[1]: 1.0, kinds[5]: 6.0}) == 14
    assert speed(work, kinds, {}) == speed(work, kinds, {kinds[1]: 0.0}) == 0


def test_real_layers_of_each_kind_are_timed():
    executor = TorchExecutor("cpu", RealClock())
    try:
        assert asyncio.run(probe(executor).flops(WORK, ALL)) > 0
    finally:
        executor.close()


def test_layers_of_unknown_shape_are_timed_alone():
    """The shapes of their inputs are found on the meta device: no layer before them takes memory."""
    pytest.importorskip("sklearn")
    from apps.ravnest.families.digits import DIGITS_MODEL, Digits
    from apps.ravnest.families.digits_model import DigitsFeed, digits_model

    config = RavnestConfig(preset="digits", microbatch=4, batch=8)
    feed = DigitsFeed(Digits.read(), torch.float32, config.seed, config.batch, config.microbatch)
    executor = TorchExecutor("cpu", RealClock())
    work = [size.work for size in DIGITS_MODEL.layer_sizes(4)]
    timer, built_layers, last = SpeedProbe(digits_model(0), feed, (4, 1), Numerics(), executor), set(), len(work) - 1
    build = timer.model.build

    def built(layers, dtype, device, seed):
        if torch.device(device).type != "meta":
            built_layers.add(layers.start)
        return build(layers, dtype, device, seed)

    timer.model.build = built
    try:
        assert asyncio.run(timer.flops(work, [layer in (1, last) for layer in range(len(work))])) > 0
    finally:
        executor.close()
    assert built_layers == {1, last}
