"""A stage gives the same gradients whole and in halves, recomputed or not, and keeps nothing of what is done."""

import pytest
import torch

from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import ModelConfig
from pipelined.random.keyed_random import KeyedRandom
from pipelined.training.stages.stage import Stage, backward_root

MODEL = GPT2(ModelConfig(layers=2, d_model=8, heads=2, vocab=13, positions=6, dropout=0.3, tied=True))
CUTS = {"first": (0, 2, range(2)), "last": (1, 2, range(2, 4)), "middle": (1, 3, range(1, 3)), "all": (0, 1, range(4))}
MICROBATCHES = [(0, 4), (0, 5), (1, 6)]
"""Names of live microbatches: (pipe, microbatch)."""


def stage_of(cut, **recompute):
    index, depth, layers = CUTS[cut]
    module = MODEL.build(layers, torch.float64, "cpu", seed=1)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return Stage(MODEL, module, index, depth, torch.device("cpu"), **recompute)


def example(stage, number):
    """Input, gradient of the output and targets of a microbatch."""
    random = torch.Generator().manual_seed(number)
    ids, targets = torch.randint(0, 13, (2, 2, 6), generator=random)
    x, gradient = torch.randn(2, 2, 6, 8, generator=random, dtype=torch.float64)
    return ids if stage.is_first else x, None if stage.is_last else gradient, targets if stage.is_last else None


def trained(stage, halves):
    """Outputs and inputs' gradients of all microbatches, and the parameters' gradients at the end."""
    seen = []
    for key in MICROBATCHES:
        x, _, targets = example(stage, key[1])
        seen.append(stage.forward(key, x, KeyedRandom(1, 0, key[1]), targets))
    for key in MICROBATCHES:
        _, gradient, targets = example(stage, key[1])
        back = stage.backward_input if halves else stage.backward
        seen.append(back(key, gradient, 0.25, KeyedRandom(1, 0, key[1]), targets))
    assert not halves or all(not parameter.grad.any() for parameter in stage.module.parameters())
    for key in MICROBATCHES if halves else ():
        stage.backward_weight(key)
    return seen, {name: parameter.grad for name, parameter in stage.module.named_parameters()}


RECOMPUTED = [{"recompute": True}, {"recompute_attention": True}, {"recompute": True, "recompute_attention": True}]
WAYS = [({}, True), *((recompute, halves) for recompute in RECOMPUTED for halves in (False, True))]


@pytest.mark.parametrize(("recompute", "halves"), WAYS, ids=str)
@pytest.mark.parametrize("cut", CUTS)
def test_halves_and_recomputed_forwards_give_what_the_whole_backward_gives(cut, recompute, halves):
    (expected, gradients), stage = trained(stage_of(cut), halves=False), stage_of(cut, **recompute)
    got, other_gradients = trained(stage, halves)
    for parcel, got_parcel in zip(expected, got, strict=True):
        assert got_parcel is None if parcel is None else torch.equal(parcel.tensors[0], got_parcel.tensors[0])
    for name, gradient in gradients.items():
        assert torch.equal(gradient, other_gradients[name]), name
    assert not stage.alive and not stage.pending


def test_the_first_stage_sends_nothing_back():
    stage = stage_of("first")
    x, gradient, _ = example(stage, 0)
    stage.forward((0, 0), x, KeyedRandom(1, 0, 0))
    assert stage.backward_input((0, 0), gradient, 1.0, KeyedRandom(1, 0, 0)) is None


def test_a_backward_from_seeds_has_the_bits_of_torch_s_own():
    """Two outputs share a weight and a product, and one has a gradient of another layout."""
    generator = torch.Generator().manual_seed(1)
    results = []
    for uses_seeds in (True, False):
        generator.manual_seed(1)
        x, weight = (torch.randn(5, 5, generator=generator).requires_grad_() for _ in range(2))
        product = (x @ weight).tanh()
        outputs = (product @ weight, (product * x).sum(0))
        gradients = (torch.randn(5, 5, generator=generator).t(), torch.randn(5, generator=generator))
        if uses_seeds:
            backward_root(list(zip(outputs, gradients, strict=True))).backward()
        else:
            torch.autograd.backward(outputs, gradients)
        results.append((x.grad, weight.grad))
    assert all(map(torch.equal, *results))
