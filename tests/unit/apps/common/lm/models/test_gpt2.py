"""GPT-2: its names and counts, cuts that change nothing, and numbers keyed by name and place."""

from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.common.flags.presets import find_preset
from apps.common.lm.models.gelu import gelu
from apps.common.lm.models.gpt2 import GPT2
from apps.common.lm.models.gpt2_presets import PRESETS, ModelConfig, layer_shapes, parameters, shapes
from pipelined.random.keyed_random import KeyedRandom, drawing_from

SMALL = ModelConfig(layers=3, d_model=24, heads=3, vocab=50, positions=16, dropout=0.1)
UNTIED = ModelConfig(layers=3, d_model=24, heads=3, vocab=50, positions=16, dropout=0.1, tied=False)
IDS = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(1))


@cache
def build(
    config: ModelConfig, layers: range | None = None, seed: int = 0, dtype: torch.dtype = torch.float64
) -> torch.nn.Module:
    model = GPT2(config)
    return model.build(layers or range(model.layers), dtype, "cpu", seed)


def computed(part: torch.nn.Module, x: torch.Tensor, random: KeyedRandom | None = None) -> torch.Tensor:
    with drawing_from(random):
        return part(x)


def in_parts(config: ModelConfig, cuts: list[int], x: torch.Tensor, random: KeyedRandom | None) -> torch.Tensor:
    for start, end in pairwise([0, *cuts, config.layers + 2]):
        x = computed(build(config, range(start, end)), x, random)
    return x


@pytest.mark.parametrize("config", [SMALL, UNTIED], ids=["tied", "untied"])
def test_every_layer_holds_the_parameters_the_closed_form_names(config: ModelConfig):
    for number, expected in enumerate(layer_shapes(config)):
        held = {n: tuple(p.shape) for n, p in build(config, range(number, number + 1)).named_parameters()}
        assert held == expected
    whole = {n: tuple(p.shape) for n, p in build(config).named_parameters()}
    assert whole == shapes(config)


def test_the_papers_model_has_its_parameters():
    config = find_preset("chimera", PRESETS)
    part = GPT2(config).build(range(66), torch.float32, "meta", 0)
    assert sum(p.numel() for p in part.parameters()) == parameters(config) == 1_389_327_360


@settings(max_examples=30, deadline=None)
@given(
    cuts=st.sets(st.integers(1, 4)).map(sorted),
    config=st.sampled_from([SMALL, UNTIED]),
    random=st.sampled_from([None, KeyedRandom(seed=3, step=1, microbatch=2)]),
)
def test_a_cut_anywhere_changes_no_bit(cuts: list[int], config: ModelConfig, random: KeyedRandom | None):
    assert torch.equal(in_parts(config, cuts, IDS, random), computed(build(config), IDS, random))


def test_initial_values_depend_on_seed_and_name_alone():
    whole = dict(build(SMALL, seed=5).named_parameters())
    for name, parameter in build(SMALL, range(2, 3), seed=5).named_parameters():
        assert torch.equal(parameter, whole[name])
    other = dict(build(SMALL, seed=6).named_parameters())
    assert not torch.equal(other["transformer.wte.weight"], whole["transformer.wte.weight"])
    single = dict(build(SMALL, seed=5, dtype=torch.float32).named_parameters())
    assert all(torch.equal(single[n].double(), p) for n, p in whole.items())


@pytest.mark.parametrize("deviation", [0.02, 0.06])
def test_initial_values_have_the_deviations_requested(deviation: float):
    config = ModelConfig(layers=2, d_model=128, heads=2, vocab=256, positions=64, deviation=deviation)
    found = dict(build(config).named_parameters())
    assert found["transformer.h.0.mlp.c_fc.weight"].std().item() == pytest.approx(deviation, rel=0.05)
    assert found["transformer.h.0.mlp.c_proj.weight"].std().item() == pytest.approx(deviation / 2, rel=0.05)
    assert found["transformer.h.1.ln_2.weight"].eq(1).all() and found["transformer.h.1.attn.c_attn.bias"].eq(0).all()


def test_noise_changes_the_output_and_is_repeatable():
    part = build(SMALL)
    calm, first, again = part(IDS), computed(part, IDS, KeyedRandom(0, 4, 1)), computed(part, IDS, KeyedRandom(0, 4, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, calm)
    assert not torch.allclose(first, computed(part, IDS, KeyedRandom(0, 4, 2)))


def test_attention_with_dropout_agrees_with_the_fused_kernel_where_little_is_dropped():
    slight = ModelConfig(layers=3, d_model=24, heads=3, vocab=50, positions=16, dropout=1e-12)
    part = build(slight)
    torch.testing.assert_close(computed(part, IDS, KeyedRandom(0, 0, 0)), part(IDS), rtol=1e-10, atol=1e-10)


def test_no_token_sees_a_later_one():
    part, changed = build(SMALL), IDS.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 50
    for random in (None, KeyedRandom(0, 0, 0)):
        before, after = computed(part, IDS, random), computed(part, changed, random)
        torch.testing.assert_close(before[:, :5], after[:, :5], rtol=0, atol=1e-14)
        assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_shapes_flow_as_stated():
    model, x = GPT2(SMALL), IDS
    for layer in range(model.layers):
        assert tuple(x.shape) == model.shape_of(layer, *IDS.shape)
        x = build(SMALL, range(layer, layer + 1))(x)
    assert tuple(x.shape) == model.shape_of(model.layers, *IDS.shape)


def test_the_loss_is_the_mean_over_tokens_in_the_precision_given():
    model = GPT2(SMALL)
    logits = torch.zeros(2, 9, 50)
    for dtype, exact in (
        (torch.float64, torch.float64),
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.float32),
    ):
        loss = model.loss(logits.to(dtype), IDS)
        assert loss.dtype == exact and loss.item() == pytest.approx(torch.tensor(50.0).log().item())


def test_bfloat16_autocast_stays_near_float32():
    part = build(SMALL, dtype=torch.float32)
    exact = part(IDS)
    with torch.autocast("cpu", torch.bfloat16):
        near = part(IDS)
        GPT2(SMALL).loss(computed(part, IDS, KeyedRandom(0, 0, 0)), IDS).backward()
    assert near.dtype == torch.bfloat16
    torch.testing.assert_close(near.float(), exact, rtol=0.05, atol=0.02)
    assert all(p.grad.isfinite().all() and p.dtype == torch.float32 for p in part.parameters())


def test_costs_follow_the_multiplications():
    costs = GPT2(SMALL).costs(16)
    assert (
        costs[1]
        == costs[3]
        == 2 * sum(p.numel() for p in build(SMALL, range(1, 2)).parameters() if p.dim() > 1) + (2 * 2 * 16 * 24)
    )
    assert costs[-1] == 2 * 50 * 24 and len(costs) == 5


def test_what_makes_a_checkpoint_fit_is_the_sizes():
    assert GPT2(SMALL).identity() != GPT2(UNTIED).identity()
    calmer = ModelConfig(layers=3, d_model=24, heads=3, vocab=50, positions=16, dropout=0.0)
    assert GPT2(SMALL).identity() == GPT2(calmer).identity()


def test_the_gelu_is_the_formula_and_its_gradient_is_right():
    x = torch.linspace(-6, 6, 101, requires_grad=True)
    formula = 0.5 * x * (1.0 + torch.tanh((2.0 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3.0))))
    assert torch.equal(gelu(x), formula)
    assert torch.autograd.gradcheck(gelu, x.detach().double().requires_grad_())
