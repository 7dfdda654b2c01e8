"""The learning rate, the clip, and the update."""

import sys

import pytest
import torch
from torch import nn

from pipelined.training.optimizer import OptimizerConfig, clip_factor, update
from pipelined.training.optimizer.config import UpdateFailed
from tests.launching import launched

OPTIMIZER = OptimizerConfig(lr=1.0, steps=110, warmup=10, floor=0.1, clip=2.0)


def test_the_rate_rises_linearly_and_falls_along_half_a_cosine():
    assert OPTIMIZER.rate(0) == pytest.approx(0.1)
    assert OPTIMIZER.rate(9) == pytest.approx(1.0)
    assert OPTIMIZER.rate(60) == pytest.approx(0.55)
    assert OPTIMIZER.rate(110) == pytest.approx(0.1)
    assert OPTIMIZER.rate(10**6) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        ("wsd", {0: 0.1, 9: 1.0, 60: 1.0, 90: 1.0, 100: 0.6, 110: 0.2, 999: 0.2}),
        ("constant", {4: 0.5, 9: 1.0, 110: 1.0}),
    ],
)
def test_another_decay_stays_at_the_highest_rate_and_wsd_falls_over_the_last_fifth(decay, rates):
    settings = OptimizerConfig(lr=1.0, steps=110, warmup=10, floor=0.2, decay=decay)
    assert {step: settings.rate(step) for step in rates} == pytest.approx(rates)


def test_gradients_shrink_only_beyond_the_clip_and_never_where_it_is_off():
    assert clip_factor(OPTIMIZER.clip, 1.0) == 1.0
    assert clip_factor(OPTIMIZER.clip, 4.0) == pytest.approx(0.5, rel=1e-6)
    assert clip_factor(0.0, 1e9) == 1.0


def parameters():
    torch.manual_seed(0)
    named = {"w": nn.Parameter(torch.randn(3, 2)), "b": nn.Parameter(torch.randn(2))}
    for parameter in named.values():
        parameter.grad = torch.randn_like(parameter)
    return named


def test_vectors_do_not_decay():
    optimizer = OPTIMIZER.build(parameters())
    decays = {group["weight_decay"]: [p.dim() for p in group["params"]] for group in optimizer.param_groups}
    assert decays == {0.1: [2], 0.0: [1]}


def test_updates_are_those_of_torch_s_own_to_the_bit():
    first, second = parameters(), parameters()
    optimizer = OPTIMIZER.build(first)
    groups = [
        {**group, "params": [second[name] for name in names]}
        for group, names in zip(optimizer.param_groups, "wb", strict=True)
    ]
    torchs = torch.optim.AdamW(groups)
    for _ in range(3):
        optimizer.step()
        torchs.step()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_update_does_not_load_torch_s_compiler():
    """It takes as long to import as all of torch, on every rank."""
    program = (
        "import sys, torch; from pipelined.training.optimizer import OptimizerConfig;"
        "p = torch.nn.Parameter(torch.ones(2)); p.grad = torch.ones(2);"
        "OptimizerConfig(lr=1.0, steps=1).build({'p': p}).step(); assert float(p.detach().sum()) < 2.0;"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    process = launched([sys.executable, "-c", program], timeout=60)
    assert process.returncode == 0, process.stderr


def updated(threads, shape, vectors):
    """A parameter after three updates by so many threads, with others beside it."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(1)
    named = {"0": nn.Parameter(torch.randn(shape, generator=generator))}
    named |= {f"{n}": nn.Parameter(torch.ones(7)) for n in range(1, 1 + vectors)}
    optimizer = OPTIMIZER.build(named)
    for step in range(3):
        for parameter in named.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator if parameter is named["0"] else None)
        update(optimizer, OPTIMIZER.rate(step), 0.5)
    return named["0"].detach()


@pytest.mark.parametrize("shape", [(7,), (1001, 103)], ids=["short", "for several threads"])
def test_the_bits_of_an_update_depend_on_neither_threads_nor_other_parameters(shape):
    threads = torch.get_num_threads()
    try:
        alone = updated(1, shape, vectors=0)
        assert torch.equal(alone, updated(3, shape, vectors=0))
        assert torch.equal(alone, updated(3, shape, vectors=2))
    finally:
        torch.set_num_threads(threads)


def test_frozen_parameters_are_left_out_and_there_may_be_nothing_else():
    trained, frozen = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2), requires_grad=False)
    trained.grad = torch.ones(2, 2)
    update(OPTIMIZER.build({"one": trained, "other": frozen}), 0.1, gradient_scale=0.5)
    update(OPTIMIZER.build({"other": frozen}), 0.1, gradient_scale=0.5)
    assert not torch.equal(trained, torch.ones(2, 2)) and torch.equal(frozen, torch.ones(2, 2))


class Refusing(torch.optim.SGD):
    def step(self, closure=None):
        raise ZeroDivisionError("no such update")


def test_an_update_that_raises_names_the_optimizer_and_how_many_parameters():
    optimizer = Refusing([nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(UpdateFailed) as failed:
        update(optimizer, None, 1.0)
    assert str(failed.value) == "the update of 2 parameters by Refusing failed: ZeroDivisionError('no such update')"
    assert isinstance(failed.value.__cause__, ZeroDivisionError)


def test_an_update_without_memory_is_no_failed_update(monkeypatch):
    def hungry(*arguments):
        raise MemoryError

    monkeypatch.setattr(Refusing, "step", hungry)
    with pytest.raises(MemoryError):
        update(Refusing([nn.Parameter(torch.ones(1))], lr=0.1), None, 1.0)
