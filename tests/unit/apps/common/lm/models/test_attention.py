"""Attention by its formula in float64, and continuations with keys and values kept, beside a loop that keeps none."""

import math

import pytest
import torch

import pipelined as pp
from apps.common.lm.models.attention import causal_attention
from apps.common.lm.models.gpt2 import GPT2, token_loss
from apps.common.lm.models.gpt2_presets import ModelConfig
from apps.common.lm.models.llama import builders
from apps.common.lm.models.llama_presets import LlamaConfig
from apps.common.lm.models.rotary import RotaryLM
from apps.common.lm.models.rotary_presets import RotaryConfig, cut_for
from apps.common.lm.sampling import Picker, sample
from pipelined.training.models.user_model import bind
from pipelined.training.stages.key_values import KeyValueCache

POSITIONS, PROMPT = 12, [7, 1, 1, 4]
SWARM = RotaryConfig(4, 24, 3, 40, POSITIONS, dropout=0.1, shared=2, squeeze="maxout", deviation=0.3)
LLAMA = LlamaConfig(
    layers=3,
    d_model=24,
    heads=4,
    kv_heads=2,
    hidden=32,
    vocab=40,
    head_width=6,
    positions=POSITIONS,
    kind="qwen3",
    deviation=0.3,
)
MODELS = {
    "gpt2": GPT2(ModelConfig(3, 24, 4, 40, POSITIONS, dropout=0.1, deviation=0.3)),
    "llama": bind(pp.Sequential(builders(LLAMA), initial="keyed"), token_loss, 5),
    "rotary": RotaryLM(cut_for(SWARM, 3, POSITIONS)[0]),
}
KEPT = {"gpt2": 3 * 4 * 6, "llama": 3 * 2 * 6, "rotary": 4 * 3 * 8}
"""The numbers in the keys of a token: those of each head (K), in all heads (G) of all attentions."""
each_model = pytest.mark.parametrize("name", MODELS)


def whole(name):
    model = MODELS[name]
    return model.build(range(model.layers), torch.float64, "cpu", 5).eval()


@pytest.mark.parametrize("seen", [0, 1, 4])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_attention_is_its_formula_also_where_keys_are_shared_and_kept(groups, seen):
    """Head h of queries meets the keys of head h // (H / G); token t sees those up to its own."""
    draws = torch.Generator().manual_seed(groups)
    query, key, value = (
        torch.randn(2, heads, 7, 4, dtype=torch.float64, generator=draws) for heads in (6, groups, groups)
    )
    expected = torch.zeros_like(query)
    for head in range(6):
        keys, values = key[:, head // (6 // groups)], value[:, head // (6 // groups)]
        for token in range(7):
            scores = torch.einsum("bk,btk->bt", query[:, head, token], keys[:, : token + 1]) / math.sqrt(4)
            expected[:, head, token] = torch.einsum("bt,btk->bk", scores.softmax(1), values[:, : token + 1])
    past, found = KeyValueCache(), []
    for tokens in (slice(0, seen), slice(seen, 7)):
        if tokens.start < tokens.stop:
            x = torch.empty(2, tokens.stop - tokens.start)
            parts = [each[:, :, tokens] for each in (query, key, value)]
            found.append(past.run(lambda _, parts=parts: causal_attention(*parts), x))
    torch.testing.assert_close(torch.cat(found, 2), expected, rtol=1e-13, atol=1e-14)


@each_model
@torch.no_grad()
def test_logits_behind_what_is_kept_are_those_of_the_whole_sequence(name):
    model, past, draws = whole(name), KeyValueCache(), torch.Generator().manual_seed(2)
    ids = torch.randint(0, 40, (2, POSITIONS), generator=draws)
    expected = model(ids)
    for start, stop in ((0, 5), (5, 6), (6, 9), (9, POSITIONS)):
        logits = past.run(model, ids[:, start:stop])
        torch.testing.assert_close(logits, expected[:, start:stop], rtol=1e-11, atol=1e-12)
        assert past.length == stop
        assert past.nbytes == 8 * 2 * 2 * KEPT[name] * stop  # float64, keys and values, two sequences


@each_model
@pytest.mark.parametrize("pick", [Picker(0, 0.0), Picker(3, 1.5, 0), Picker(4, 0.9, 9, 0.8)], ids=repr)
@torch.no_grad()
def test_a_continuation_is_that_of_a_loop_that_keeps_nothing(name, pick, monkeypatch):
    """Up to the context length each token is computed once; beyond it every token has a new position."""
    model, expected, forwards = whole(name), list(PROMPT), []
    for number in range(11):
        expected.append(pick(model(torch.tensor([expected[-POSITIONS:]]))[0, -1], number))
    run = KeyValueCache.run
    monkeypatch.setattr(
        KeyValueCache, "run", lambda past, layers, x: forwards.append(x.shape[1]) or run(past, layers, x)
    )
    assert sample(model, PROMPT, 11, POSITIONS, pick) == expected
    assert forwards == [4, *[1] * 8, 12, 12]
