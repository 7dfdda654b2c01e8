"""Parameters with the same holders are summed together."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from pipelined.programs.plan import Plan
from pipelined.programs.updates.bucket_names import name_buckets
from pipelined.training.sums import bucket as module
from pipelined.training.sums.bucket import fill_bucket


def test_a_tied_name_is_a_bucket_of_both_its_stages():
    named = name_buckets({0: ["wte", "wpe"], 1: ["h.0"], 2: ["ln", "wte"]})
    assert named == {(0,): ["wpe"], (0, 2): ["wte"], (1,): ["h.0"], (2,): ["ln"]}


@given(st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=5, unique=True), min_size=1, max_size=6))
def test_every_name_lies_in_exactly_one_bucket(stages):
    named = name_buckets(dict(enumerate(stages)))
    placed = [name for names in named.values() for name in names]
    assert sorted(placed) == sorted({name for names in stages for name in names})
    for holders, names in named.items():
        for name in names:
            assert holders == tuple(s for s, names_of_stage in enumerate(stages) if name in names_of_stage)


def test_a_tied_bucket_is_held_by_the_ranks_of_both_stages_once():
    plan = Plan("chimera", depth=4, width=2, microbatch_size=1, microbatches=4)
    assert plan.holders(0, 3) == (0, 3, 4, 7)
    assert Plan("gpipe", 4, 2, 1, 4).holders(0, 3) == (0, 3, 4, 7)


def test_backward_adds_into_the_flat_gradient():
    plan = Plan("gpipe", 1, 1, 1, 1)
    parameters = {"w": nn.Parameter(torch.ones(2, 3)), "b": nn.Parameter(torch.ones(3))}
    bucket = fill_bucket(plan, (0,), parameters)
    for _ in range(2):
        (torch.ones(1, 2) @ parameters["w"] + parameters["b"]).sum().backward()
    assert bucket.gradient.tolist() == [2.0] * 9
    bucket.gradient.zero_()
    assert not parameters["w"].grad.any() and not parameters["b"].grad.any()


def test_a_gradient_that_moves_keeps_its_values_and_backward_adds_there():
    weight = nn.Parameter(torch.ones(2, 3))
    bucket = fill_bucket(Plan("gpipe", 1, 1, 1, 1), (0,), {"w": weight})
    bucket.gradient.fill_(5)
    memory = np.zeros(24, np.uint8)
    bucket.rebase(memory)
    weight.sum().backward()
    assert memory.view(np.float32).tolist() == bucket.gradient.tolist() == [6.0] * 6
    bucket.gradient.zero_()
    assert not weight.grad.any()
    with pytest.raises(ValueError, match="memory: 20, summed: 24 bytes"):
        bucket.rebase(np.zeros(20, np.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_norms_are_one_operation_with_the_bits_of_one_each(dtype):
    """On a GPU each operation is launched by itself, however small its tensor is."""
    calls = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            calls.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    parameters = {str(size): nn.Parameter(torch.zeros(size, dtype=dtype)) for size in (1, 3, 768, 12345)}
    bucket = fill_bucket(Plan("gpipe", 1, 1, 1, 1), (0,), parameters)
    bucket.gradient.normal_(generator=torch.Generator().manual_seed(0))
    expected = {n: float(torch.linalg.vector_norm(p.grad, dtype=torch.float64)) ** 2 for n, p in parameters.items()}
    with Noted():
        assert bucket.squares() == expected
    assert [name for name in calls if "norm" in name] == ["_foreach_norm"]


def test_a_norm_copies_no_more_of_a_gradient_than_a_piece(monkeypatch):
    """On a CPU torch copies to float64 what it takes the norm of: twice the gradient of a whole vocabulary."""
    monkeypatch.setattr(module, "NORM_PIECE", 100)
    sizes = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if "norm" in func.overloadpacket.__name__:
                sizes.extend(piece.numel() for piece in args[0])
            return func(*args, **(kwargs or {}))

    parameters = {str(size): nn.Parameter(torch.zeros(size)) for size in (0, 100, 201)}
    bucket = fill_bucket(Plan("gpipe", 1, 1, 1, 1), (0,), parameters)
    bucket.gradient.normal_(generator=torch.Generator().manual_seed(0))
    with Noted():
        squares = bucket.squares()
    assert sizes == [0, 100, 100, 100, 1]
    expected = {name: float(parameter.grad.double().square().sum()) for name, parameter in parameters.items()}
    assert squares == pytest.approx(expected, rel=1e-14)
