"""RMSNorm, attention and the layers of a Transformer over the ranks of a worker, beside the plain loop in float64."""

import functools
import re

import pytest
import torch
from torch import nn

import pipelined as pp
from pipelined.training.models.split.table import WHOLE, split_row
from tests.numerics.test_split_rows import LOSSES, TOKENS, WIDTH, looped, refused, require_equal, split

SLOTS, INNER = 5, 6


def tiny():
    """Its first outputs are about as small as the root of the default eps of float64."""
    layer = nn.Linear(INNER, 7, bias=False)
    with torch.no_grad():
        layer.weight.mul_(1e-8)
    return layer


def norms():
    """RMSNorms of columns that ranks share, of rows, and over two dimensions; with and without weight and eps."""
    return [
        lambda: nn.Linear(WIDTH, SLOTS * INNER),
        lambda: nn.RMSNorm(SLOTS * INNER, eps=1e-3),
        nn.GELU,
        lambda: nn.Unflatten(1, (SLOTS, INNER)),
        lambda: nn.RMSNorm((SLOTS, INNER)),
        nn.GELU,
        tiny,
        lambda: nn.RMSNorm(7, elementwise_affine=False),
        nn.GELU,
        nn.Flatten,
        lambda: nn.Linear(SLOTS * 7, WIDTH),
    ]


LOSSES[norms] = nn.functional.mse_loss


@pytest.mark.parametrize(("tensor", "layout"), [(1, None), (2, None), (3, None), (3, "data"), (2, "6=1.1.2")])
def test_a_split_rms_norm_trains_as_a_plain_one(tensor, layout):
    require_equal(split(norms, tensor=tensor, layout=layout, microbatches=2), looped(norms, 2))


def transformers(dropout=0.0):
    """Layers with the norm first and last, of four heads and of three, and attention alone, causal and not."""
    encoder = functools.partial(nn.TransformerEncoderLayer, batch_first=True, dropout=dropout)
    return [
        lambda: nn.Linear(WIDTH, SLOTS * 12),
        lambda: nn.Unflatten(1, (SLOTS, 12)),
        lambda: encoder(12, 4, 10),
        lambda: nn.Linear(12, 12),
        lambda: encoder(12, 3, 7, norm_first=True, activation="gelu", bias=False),
        lambda: pp.SelfAttention(12, 3, dropout, causal=True),
        lambda: pp.SelfAttention(12, 6, dropout, bias=False),
        nn.Flatten,
        lambda: nn.Linear(SLOTS * 12, WIDTH),
    ]


def dropping_transformers():
    return transformers(0.2)


LOSSES[transformers] = LOSSES[dropping_transformers] = nn.functional.mse_loss
FACTORS = (
    "2.self_attn.in_proj=2.2.1,2.self_attn.out_proj=1.2.2,2.linear1=1.2.2,2.linear2=4.1.1,4.self_attn.in_proj=2.1.2"
)
FACTORS += ",4.self_attn.out_proj=2.2.1,5.in_proj=4.1.1,5.out_proj=2.1.2,6.in_proj=1.2.2"


@pytest.mark.in_turns(6)
@pytest.mark.parametrize(
    ("layers", "tensor", "more"),
    [
        (dropping_transformers, 1, {}),
        (dropping_transformers, 2, {}),
        (dropping_transformers, 3, {}),
        (transformers, 3, {}),
        (transformers, 2, {"layout": "data"}),
        (transformers, 4, {"layout": FACTORS}),
        pytest.param(dropping_transformers, 4, {"layout": FACTORS}, marks=pytest.mark.full),
    ],
    ids=lambda value: value.__name__ if callable(value) else str(value),
)
def test_split_transformers_train_as_plain_ones(layers, tensor, more):
    require_equal(split(layers, tensor=tensor, microbatches=2, **more), looped(layers, 2))


def encoders():
    """A stack of layers that takes the inputs as they come, whole on all ranks."""
    layer = functools.partial(nn.TransformerEncoderLayer, 12, 2, 8, dropout=0.1, batch_first=True)
    return [
        lambda: nn.TransformerEncoder(layer(), 2, nn.LayerNorm(12), enable_nested_tensor=False),
        lambda: layer(activation=nn.SiLU()),
        lambda: nn.Linear(12, 12),
    ]


LOSSES[encoders] = nn.functional.mse_loss
TOKENS.add(encoders)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("more", [{}, {"depth": 2, "schedule": "zb_h1", "shard_optimizer": True}], ids=str)
def test_a_stack_of_layers_is_split_layer_by_layer(more, capfd):
    require_equal(split(encoders, tensor=2, microbatches=2, **more), looped(encoders, 2))
    said = capfd.readouterr().err
    assert "0.layers.1 (TransformerEncoderLayer) in_proj 1.2.1 out_proj 1.1.2 linear1 1.2.1 linear2 1.1.2" in said
    assert "kept whole" not in said


def test_more_shards_than_heads_are_refused_with_a_layout_that_fits():
    message = (
        r"more column shards than heads \(layer 1, shards: 3, heads: 2\); .* layout (1.in_proj=3.1.1,1.out_proj=3.1.1)"
    )

    def layers():
        return [nn.Identity, lambda: pp.SelfAttention(12, 2)]

    LOSSES[layers] = nn.functional.mse_loss
    TOKENS.add(layers)
    found = re.search(message, refused(layers, tensor=3))
    require_equal(split(layers, tensor=3, layout=found[1], microbatches=2), looped(layers, 2))


@pytest.mark.parametrize(
    ("layer", "tensor", "message"),
    [
        (lambda: nn.TransformerEncoderLayer(WIDTH, 2, 4, batch_first=True), 2, r"layer 0.self_attn takes \(6, 8\)"),
        (lambda: pp.SelfAttention(WIDTH, 2), 1, r"rejected the inputs .* not of \(6, 8\)"),
    ],
    ids=["encoder", "attention"],
)
def test_attention_among_the_rows_of_a_batch_is_refused(layer, tensor, message):
    def layers():
        return [layer]

    LOSSES[layers] = nn.functional.mse_loss
    assert re.search(message, refused(layers, tensor=tensor, microbatches=2))


def test_what_two_members_saved_goes_on_in_one_and_in_three(tmp_path):
    expected, arguments = looped(transformers, 2), {"microbatches": 2, "resume": tmp_path}
    split(transformers, tensor=2, microbatches=2, steps=2, checkpoint=tmp_path)
    for tensor in (1, 3):
        done = split(transformers, tensor=tensor, **arguments)
        require_equal(done, (expected[0][2:], expected[1]))


@pytest.mark.parametrize(
    "change", [{"batch_first": False}, {"activation": torch.sin}], ids=lambda change: next(iter(change))
)
def test_a_layer_of_a_transformer_that_no_split_knows_is_kept_whole(change):
    layer = nn.TransformerEncoderLayer(4, 2, 4, device="meta", **{"batch_first": True, **change})
    assert [each.split_text for each in split_row([("0", layer)], {}, 2, None)] == [WHOLE]


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention_is_torchs_of_one_tensor(causal):
    torch.manual_seed(0)
    ours, x = pp.SelfAttention(6, 2, causal=causal).double(), torch.randn(3, 4, 6, dtype=torch.float64)
    plain = nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64)
    plain.load_state_dict(ours.state_dict())
    later = torch.ones(4, 4, dtype=torch.bool).triu(1) if causal else None
    torch.testing.assert_close(ours(x), plain(x, x, x, attn_mask=later)[0], rtol=1e-12, atol=1e-14)
