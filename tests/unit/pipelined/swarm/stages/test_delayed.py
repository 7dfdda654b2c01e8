"""A stage with late updates is a plain loop that applies each gradient one step late, in whatever order it is asked."""

from functools import cache

import numpy as np
import pytest
import torch

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from pipelined.state.stages.donor import copy_state
from pipelined.state.stages.store import DiskStore, load
from pipelined.state.stages.versions import SavedStage
from pipelined.state.tensor_specs import specs_of
from pipelined.swarm.stages.delayed import PENDING, DelayedStage, clear_all
from pipelined.swarm.stages.swarm_stage import Microbatch
from pipelined.swarm.stages.torch_stage import TorchStage
from pipelined.swarm.stages.training import Training
from pipelined.training.optimizer import OptimizerConfig

ROWS, SEQUENCE, SYMBOLS, BATCH, STEPS = 2, 4, 11, 2, 5
MODEL = GPT2(ModelConfig(layers=1, d_model=8, heads=2, vocab=SYMBOLS, positions=SEQUENCE, dropout=0.1, tied=False))
WHOLE = (range(MODEL.layers),)
TRAINING = Training(
    MODEL, WHOLE, OptimizerConfig(lr=1e-2, steps=STEPS, warmup=2), ROWS, SEQUENCE, seed=3, dtype=torch.float64
)
HALVES = Training(
    MODEL, (range(2), range(2, MODEL.layers)), TRAINING.optimizer_settings, ROWS, SEQUENCE, seed=3, dtype=torch.float64
)
SCALE = 1 / (ROWS * BATCH)


def count(stage, step, *indices):
    for index in indices:
        tokens = np.random.default_rng((step, index)).integers(0, SYMBOLS, (ROWS, SEQUENCE + 1))
        inputs, labels = np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])
        stage.backward(Microbatch(step, index), [inputs], [labels], True)


@cache
def plain():
    """The loop: by step, the parameters and optimizer, and the total that is computed with them.

    Not when this file is read: other tests leave torch with other threads, and so with other bits.
    """
    stage, states, totals = TorchStage(TRAINING, 0), [], []
    for step in range(STEPS + 1):
        states.append(copy_state(stage.state()))
        stage.clear()
        count(stage, step, *range(BATCH))
        totals.append(stage.sums.copy())
        if step:
            stage.apply(step - 1, totals[step - 1], SCALE)
    return states, totals


def total(step):
    return plain()[1][step]


def stands(stage, step):
    """The stage holds what the loop has at this step."""
    state = copy_state(stage.state())
    return all(state[name] == block for name, block in plain()[0][step].items())


def test_each_gradient_is_applied_one_step_late_at_the_rate_of_its_own_step():
    stage = DelayedStage(TorchStage(TRAINING, 0))
    for step in range(STEPS):
        assert stands(stage, step)
        count(stage, step, *range(BATCH))
        assert np.array_equal(stage.sums, total(step))
        stage.apply(step, stage.sums.copy(), SCALE)
        assert not stage.sums.any()


def test_what_is_finished_has_every_gradient():
    stage, every = DelayedStage(TorchStage(TRAINING, 0)), TorchStage(TRAINING, 0)
    for step in range(STEPS):
        stage.apply(step, total(step), SCALE)
        every.apply(step, total(step), SCALE)
    assert copy_state(stage.final_state()) == copy_state(every.state())
    assert stands(stage, STEPS)  # and goes on from where it was


@pytest.mark.parametrize("order", [(0, 0, 1, 1), (0, 1, 0, 1), (1, 0, 0, 1), (1, 1, 0, 0), (0, 0), (0, 1, 0)])
def test_two_steps_are_computed_in_any_order_and_neither_disturbs_the_other(order):
    """0 is the next microbatch of the step that stands, 1 one of the step after it; then that one stands."""
    stage, done = DelayedStage(TorchStage(TRAINING, 0)), 0
    for step in range(STEPS - 1):
        remaining = iter(range(done, BATCH)), iter(range(BATCH))
        for which in order:
            for index in [next(remaining[which], None)]:
                count(stage, step + which, *[] if index is None else [index])
        assert stands(stage, step) and np.array_equal(stage.sums, total(step))
        stage.apply(step, total(step), SCALE)
        done = order.count(1)
    assert stands(stage, STEPS - 1)


def test_the_sums_of_the_current_step_can_be_cleared_alone():
    stage = DelayedStage(TorchStage(TRAINING, 0))
    count(stage, 0, 0, 1)
    count(stage, 1, 0, 1)
    stage.clear()
    assert not stage.sums.any()
    stage.apply(0, total(0), SCALE)
    assert np.array_equal(stage.sums, total(1))


@pytest.mark.parametrize("held", [0, 1])
def test_the_sums_of_both_steps_can_be_cleared_together(held):
    stage = DelayedStage(TorchStage(TRAINING, 0))
    for step in (0, 1, held):
        count(stage, step, 0)
    clear_all(stage)
    assert not stage.sums.any()
    count(stage, 1, 0, 1)
    stage.apply(0, total(0), SCALE)
    assert np.array_equal(stage.sums, total(1))


def test_a_gradient_that_waits_is_part_of_the_state_and_is_saved_by_parameter(tmp_path):
    stage = DelayedStage(TorchStage(TRAINING, 0))
    for step in range(3):
        stage.apply(step, total(step), SCALE)
    assert sum(name.endswith(f"/{PENDING}") for name in stage.state()) == len(stage.parts(stage.sums))
    saved = SavedStage(3, 0, 1, "run-x")
    DiskStore(tmp_path, {}).save(saved, copy_state(stage.state()))
    halves = [DelayedStage(TorchStage(HALVES, index)) for index in range(2)]
    for half in halves:
        half.load(load(tmp_path, saved, specs_of(half.state()), {}))
        half.apply(3, np.zeros_like(half.sums), SCALE)
    stage.apply(3, total(3), SCALE)
    whole, parts = copy_state(stage.state()), [copy_state(half.state()) for half in halves]
    values = [name for name in whole if name.endswith("/value")]
    assert all(whole[name] == next(part[name] for part in parts if name in part) for name in values)
