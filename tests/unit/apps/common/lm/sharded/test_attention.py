"""Attention by heads and sequences, dropout of its weights included."""

import math

import pytest
import torch
from torch.nn import functional

from apps.common.lm.sharded.attention import attend
from pipelined.random.keyed_random import KeyedRandom
from pipelined.sharding.operators.matmul import SplitMatmul
from tests.unit.pipelined.sharding.operators.ranks import beside, normal

B, T, H, K = 5, 4, 6, 3


def plain(x):
    query, key, value = x.permute(2, 0, 3, 1, 4)
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)


def dropped(x, random):
    query, key, value = x.permute(2, 0, 3, 1, 4)
    scores = query @ key.transpose(2, 3) / math.sqrt(K) + torch.full((T, T), -torch.inf).triu(1)
    return (random.dropout(scores.softmax(3), 0.4, "here") @ value).transpose(1, 2)


@pytest.mark.parametrize("factors", [(2, 3, 1), (1, 2, 3), (3, 1, 4), (5, 1, 1), (2, 2, 2)], ids=str)
def test_ranks_attend_with_their_own_heads_and_send_nothing(factors):
    whole, parts = SplitMatmul(factors, (7,), (3, H, K), cut=1), SplitMatmul(factors, (H, K), (7,))
    ends = [(normal(B, T, 3, H, K), whole.output_shards((B, T)))]
    ranks, after = whole.mesh.size, parts.input_shards((B, T))
    random = KeyedRandom(1, 2, 3)
    assert beside(ranks, attend, plain, after, ends) == [0] * ranks
    key = random.key("here")
    sent = beside(ranks, lambda tape, x: attend(tape, x, 0.4, key), lambda x: dropped(x, random), after, ends)
    assert sent == [0] * ranks
