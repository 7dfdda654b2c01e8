"""AdamW and LAMB against the plain loop; the norm is equal on every peer that computes it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipelined.errors import UsageError
from pipelined.training.optimizer import OptimizerConfig
from pipelined.training.optimizer.exact import (
    PIECE,
    LearnedTensor,
    adamw,
    find_update,
    lamb,
    sum_of_squares,
    trust_ratio,
)

OPTIMIZER = OptimizerConfig(lr=0.02, steps=20, warmup=3, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-6)


def learned(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> LearnedTensor:
    value = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return LearnedTensor(value, torch.zeros_like(value), torch.zeros_like(value))


def gradients(*shape: int, count: int = 12) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for _ in range(count)]


def plain_lamb(value: np.ndarray, grads: list[np.ndarray], settings: OptimizerConfig) -> np.ndarray:
    """Algorithm 2 as it is printed, element by element."""
    x, m, v = value.ravel().tolist(), [0.0] * value.size, [0.0] * value.size
    (b1, b2), matrix = settings.betas, value.ndim >= 2
    for t, g in enumerate((grad.ravel().tolist() for grad in grads), 1):
        m = [b1 * a + (1 - b1) * b for a, b in zip(m, g, strict=True)]
        v = [b2 * a + (1 - b2) * b * b for a, b in zip(v, g, strict=True)]
        r = [(a / (1 - b1**t)) / (math.sqrt(b / (1 - b2**t)) + settings.eps) for a, b in zip(m, v, strict=True)]
        if matrix:
            r = [a + settings.weight_decay * b for a, b in zip(r, x, strict=True)]
        ratio = math.hypot(*x) / math.hypot(*r) if matrix else 1.0
        x = [a - settings.rate(t - 1) * ratio * b for a, b in zip(x, r, strict=True)]
    return np.array(x).reshape(value.shape)


@pytest.mark.parametrize("shape", [(5, 3), (7,)], ids=["matrix", "vector"])
def test_lamb_is_the_published_algorithm(shape: tuple[int, ...]):
    tensor, grads = learned(*shape), gradients(*shape)
    expected = plain_lamb(tensor.value.numpy().copy(), [g.numpy() for g in grads], OPTIMIZER)
    for number, gradient in enumerate(grads, 1):
        lamb(tensor, gradient, number, OPTIMIZER.rate(number - 1), OPTIMIZER)
    np.testing.assert_allclose(tensor.value.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("shape", [(5, 3), (7,)], ids=["matrix", "vector"])
def test_adamw_is_torchs(shape: tuple[int, ...]):
    tensor, parameter = learned(*shape), torch.nn.Parameter(learned(*shape).value)
    optimizer = OPTIMIZER.build({"p": parameter})
    for number, gradient in enumerate(gradients(*shape), 1):
        adamw(tensor, gradient, number, OPTIMIZER.rate(number - 1), OPTIMIZER)
        parameter.grad, optimizer.param_groups[0]["lr"] = gradient, OPTIMIZER.rate(number - 1)
        optimizer.step()
    torch.testing.assert_close(tensor.value, parameter.detach(), rtol=1e-12, atol=0.0)


def test_lamb_moves_a_matrix_by_the_rate_times_its_norm():
    tensor = learned(6, 4)
    before = tensor.value.clone()
    lamb(tensor, gradients(6, 4)[0] * 1e6, 1, 0.01, OPTIMIZER)
    assert (tensor.value - before).norm().item() == pytest.approx(0.01 * before.norm().item(), rel=1e-12)


def test_a_matrix_of_zeros_can_leave_zero():
    tensor = LearnedTensor(*(torch.zeros(3, 2) for _ in range(3)))
    assert trust_ratio(tensor.value, torch.ones(3, 2)) == trust_ratio(torch.ones(3, 2), tensor.value) == 1.0
    lamb(tensor, torch.ones(3, 2), 1, 0.01, OPTIMIZER)
    assert tensor.value.ne(0).all()


@pytest.mark.parametrize("update", [adamw, lamb])
def test_vectors_do_not_decay(update):
    still, settings = learned(4), replace(OPTIMIZER, weight_decay=0.5)
    before = still.value.clone()
    update(still, torch.zeros(4, dtype=torch.float64), 1, 0.1, settings)
    assert torch.equal(still.value, before)


@pytest.mark.parametrize("update", [adamw, lamb])
def test_single_precision_stays_near_double(update):
    single, double = learned(64, 32, dtype=torch.float32), learned(64, 32, dtype=torch.float32)
    double = LearnedTensor(*(tensor.double() for tensor in double))
    for number, gradient in enumerate(gradients(64, 32), 1):
        update(single, gradient.float(), number, OPTIMIZER.rate(number), OPTIMIZER)
        update(double, gradient.float().double(), number, OPTIMIZER.rate(number), OPTIMIZER)
    torch.testing.assert_close(single.value.double(), double.value, rtol=0.0, atol=2e-6)


@given(st.lists(st.floats(-(2.0**60), 2.0**60, width=32), max_size=40))
def test_the_sum_of_squares_is_that_of_an_exact_sum_but_for_rounding(values: list[float]):
    exact = math.fsum(value * value for value in values)
    assert sum_of_squares(torch.tensor(values, dtype=torch.float32)) == pytest.approx(exact, rel=1e-14)


def test_the_sum_of_squares_does_not_depend_on_how_a_tensor_lies():
    x = torch.randn(3, 7, 11, generator=torch.Generator().manual_seed(0))
    assert (
        sum_of_squares(x)
        == sum_of_squares(x.flatten())
        == sum_of_squares(x.permute(2, 0, 1).contiguous().permute(1, 2, 0))
    )


def test_the_sum_of_squares_takes_long_tensors_in_pieces():
    assert sum_of_squares(torch.full((2 * PIECE + 3,), 3.0)) == 9.0 * (2 * PIECE + 3)


def test_an_unknown_optimizer_lists_the_known():
    with pytest.raises(UsageError, match="adamw, lamb"):
        find_update("sgd")
