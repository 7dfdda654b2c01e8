"""SWARM's model against plain formulas in float64: rotary, GeGLU, shared layers, narrow streams, cuts, and counts."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import layer_norm

from apps.common.flags.presets import find_preset
from apps.common.lm.models.rotary import GatedFeedForward, RotaryLM, Squeeze, maxout, rotate
from apps.common.lm.models.rotary_presets import ROTARY_PRESETS, RotaryConfig, cut_for, layer_shapes
from pipelined.errors import UsageError
from pipelined.random.keyed_random import KeyedRandom, drawing_from

SMALL = RotaryConfig(layers=4, d_model=24, heads=3, vocab=50, positions=16, dropout=0.1, shared=2, deviation=0.2)
CONFIGS = {
    "plain": replace(SMALL, shared=1),
    "shared": SMALL,
    "bottleneck": cut_for(replace(SMALL, squeeze="bottleneck"), 3, 9)[0],
    "maxout": cut_for(replace(SMALL, squeeze="maxout", factor=4), 4, 9)[0],
}
IDS = torch.randint(0, 50, (2, 9), generator=torch.Generator().manual_seed(1))
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def build(config: RotaryConfig, layers: range | None = None, seed: int | None = 0) -> torch.nn.Module:
    model = RotaryLM(config)
    return model.build(layers or range(model.layers), torch.float64, "cpu", seed)


def test_rotary_embeddings_are_multiplications_by_unit_complex_numbers():
    x = normal(2, 3, 7, 8)  # (B, H, T, D)
    positions, pairs = torch.arange(7.0, dtype=torch.float64), torch.arange(4.0, dtype=torch.float64)
    turns = torch.polar(torch.ones(7, 4, dtype=torch.float64), positions[:, None] * 10000.0 ** (-2 * pairs / 8))
    expected = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2)).contiguous()) * turns).flatten(-2)
    torch.testing.assert_close(rotate(x), expected, rtol=1e-14, atol=1e-14)


def test_products_of_turned_queries_and_keys_know_distances_alone():
    query, key = normal(8, seed=1).expand(9, 8), normal(8, seed=2).expand(9, 8)
    scores = rotate(query) @ rotate(key).T  # (T, T)
    for distance in range(-8, 9):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0.0, atol=1e-13)


def test_the_feed_forward_is_a_gelu_times_a_linear_map():
    part = GatedFeedForward(SMALL, "mlp").double()
    for number, parameter in enumerate(part.parameters()):
        parameter.data = normal(*parameter.shape, seed=number)
    x, inner = normal(2, 5, 24, seed=9), 4 * 24
    gate = x @ part.c_fc.weight[:, :inner] + part.c_fc.bias[:inner]
    value = x @ part.c_fc.weight[:, inner:] + part.c_fc.bias[inner:]
    active = 0.5 * gate * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    expected = (active * value) @ part.c_proj.weight + part.c_proj.bias
    torch.testing.assert_close(part(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("k", [2, 4])
def test_maxout_takes_the_greatest_of_adjacent_features(k: int):
    x = normal(2, 3, 8).requires_grad_()
    out = maxout(x, k)
    rows = x.detach().reshape(-1, 8).tolist()
    assert out.flatten(0, 1).tolist() == [[max(row[i : i + k]) for i in range(0, 8, k)] for row in rows]
    out.sum().backward()
    assert x.grad.reshape(-1, k).sum(1).eq(1).all()
    assert torch.equal(x.grad.bool(), (x == out.repeat_interleave(k, -1)))


@pytest.mark.parametrize("squeeze", ["bottleneck", "maxout"])
@pytest.mark.parametrize("factor", [2, 4])
def test_a_narrow_stream_is_a_norm_a_map_and_a_norm(squeeze: str, factor: int):
    config = replace(SMALL, squeeze=squeeze, factor=factor)
    part, x, width = Squeeze(config).double(), normal(2, 3, 24), 24 // factor
    for number, parameter in enumerate(part.parameters()):
        parameter.data = normal(*parameter.shape, seed=number)
    y = layer_norm(x, (24,), part.ln_in.weight, part.ln_in.bias)
    y = y @ part.linear.weight.T if squeeze == "bottleneck" else y.unflatten(-1, (width, factor)).amax(-1)
    expected = layer_norm(y, (width,), part.ln_out.weight, part.ln_out.bias)
    torch.testing.assert_close(part(x), expected, rtol=1e-13, atol=1e-13)


def test_what_leaves_a_stage_replaces_the_stream():
    config = replace(SMALL, squeeze="bottleneck", narrow=(2,))
    whole, stream = build(config).transformer, build(config, range(0, 2))(IDS)
    residual = whole.h["0"](whole.wte(IDS))
    assert torch.equal(stream, whole.squeeze["1"](residual))
    expected = whole.h["1"](stream @ whole.widen["2"].weight.T)
    torch.testing.assert_close(build(config, range(2, 3))(stream), expected, rtol=1e-13, atol=1e-13)


def test_the_gradient_of_shared_layers_is_one_sum_over_their_runs():
    alone = build(replace(SMALL, shared=1, dropout=0.0))
    shared = build(replace(SMALL, dropout=0.0))
    theirs = dict(alone.named_parameters())
    with torch.no_grad():
        for name, parameter in shared.named_parameters():
            for copy in _copies(name):
                theirs[copy].copy_(parameter)
    out, expected = shared(IDS), alone(IDS)
    torch.testing.assert_close(out, expected, rtol=1e-13, atol=1e-13)
    seed = normal(*out.shape, seed=4)
    out.backward(seed)
    expected.backward(seed)
    for name, parameter in shared.named_parameters():
        total = sum(theirs[copy].grad for copy in _copies(name))
        torch.testing.assert_close(parameter.grad, total, rtol=1e-11, atol=1e-11)


def _copies(name: str) -> list[str]:
    """The names, in a model that shares nothing, of what this one stands for."""
    for group in (0, 1):
        if f".h.{group}." in name:
            return [name.replace(f".h.{group}.", f".h.{layer}.") for layer in (2 * group, 2 * group + 1)]
    return [name]


def test_shared_layers_draw_dropout_apart_and_the_same_again():
    part, dropped = build(SMALL, range(1, 2)), []
    part.transformer.h["0"].mlp.register_forward_hook(lambda module, given, out: dropped.append(out.eq(0)))
    for _ in range(2):
        with drawing_from(KeyedRandom(0, 1, 2)):
            part(normal(2, 9, 24))
    first, second, again, _ = dropped
    assert first.any()
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


@each_config
def test_every_layer_holds_the_parameters_the_closed_form_names(config: RotaryConfig):
    for number, expected in enumerate(layer_shapes(config)):
        held = {n: tuple(p.shape) for n, p in build(config, range(number, number + 1), None).named_parameters()}
        assert held == expected
    assert sum(p.numel() for p in build(config, seed=None).parameters()) == config.parameters


@settings(max_examples=25, deadline=None)
@given(config=st.sampled_from(list(CONFIGS.values())), cuts=st.sets(st.integers(1, 3)).map(sorted), data=st.data())
def test_a_cut_anywhere_changes_no_bit(config: RotaryConfig, cuts: list[int], data):
    random, model = data.draw(st.sampled_from([None, KeyedRandom(3, 1, 2)])), RotaryLM(config)
    x = IDS
    with drawing_from(random):
        for start, end in pairwise([0, *cuts, model.layers]):
            assert tuple(x.shape) == model.shape_of(start, 2, 9)
            x = build(config, range(start, end))(x)
        assert tuple(x.shape) == model.shape_of(model.layers, 2, 9)
        assert torch.equal(x, build(config)(IDS))


@each_config
def test_the_future_is_not_seen(config: RotaryConfig):
    part, changed = build(config), IDS.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 50
    before, after = part(IDS), part(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


def test_the_papers_model_has_its_parameters_before_and_after_sharing():
    ours, unshared = (ROTARY_PRESETS[name] for name in ("ours", "ours-unshared"))
    vocabulary = 50257 * 4096  # the paper counts it once, as embedding and head
    assert ours.parameters - vocabulary == 3 * (16 * 4096**2 + 17 * 4096) + 2 * 4096 + vocabulary == 1_011_376_128
    assert f"{(ours.parameters - vocabulary) / 1e9:.2f}" == "1.01"
    assert f"{(unshared.parameters - vocabulary) / 1e9:.0f}" == "13"
    part = RotaryLM(ours).build(range(5), torch.float32, "meta", None)
    assert sum(p.numel() for p in part.parameters()) == ours.parameters


@pytest.mark.parametrize(
    ("name", "width", "inner", "heads"),
    [("base", 768, 3072, 12), ("xxlarge", 4096, 16384, 32), ("gpt3", 12288, 49152, 96), ("ours", 4096, 16384, 32)],
)
def test_presets_have_the_papers_widths(name: str, width: int, inner: int, heads: int):
    config = find_preset(name, ROTARY_PRESETS)
    assert (config.d_model, config.heads) == (width, heads)
    assert layer_shapes(config)[1]["transformer.h.0.mlp.c_proj.weight"] == (inner, width)


def test_the_papers_model_falls_into_its_stages():
    _, three = cut_for(ROTARY_PRESETS["ours"], 3, 512)
    _, four = cut_for(ROTARY_PRESETS["ours"], 4, 512)
    assert three == (range(0, 2), range(2, 3), range(3, 5))
    assert four == (range(0, 2), range(2, 3), range(3, 4), range(4, 5))  # section 4.2: the last has the head alone


def test_the_stream_is_narrow_between_stages_and_nowhere_else():
    config, cut = cut_for(replace(SMALL, squeeze="maxout", factor=4), 3, 9)
    model = RotaryLM(config)
    widths = [model.shape_of(layer, 2, 9)[-1] for layer in range(1, model.layers)]
    assert widths == [6 if layer in {stage.start for stage in cut} else 24 for layer in range(1, model.layers)]
    assert cut_for(SMALL, 3, 9)[0] == SMALL


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shared": 3}, r"layers: 4, shared: 3\); take a divisor"),
        ({"d_model": 9, "heads": 3}, "let each head be of even width"),
        ({"tied": True}, "share no parameter"),
        ({"squeeze": "zip"}, "none, bottleneck, maxout"),
        ({"squeeze": "maxout", "factor": 3}, r"factor: 3\); take a factor of 2 or 4"),
        ({"narrow": (1,)}, "squeeze: none"),
        ({"squeeze": "maxout", "narrow": (4,)}, r"before layers: \(4,\)"),
        ({"heads": 5}, "give --heads 4, or"),
    ],
)
def test_sizes_that_cannot_work_are_refused_with_the_numbers(change: dict, message: str):
    with pytest.raises(UsageError, match=message):
        replace(SMALL, **change)


@pytest.mark.parametrize("stages", [0, 5])
def test_more_stages_than_layers_are_refused(stages: int):
    with pytest.raises(UsageError, match=rf"stages: {stages}, layers that can be cut apart: 4"):
        cut_for(SMALL, stages, 9)
