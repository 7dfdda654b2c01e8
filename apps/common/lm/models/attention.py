"""Causal attention of every language model here: heads that share keys, dropout, and the tokens that came before.

Shapes: B microbatch, T tokens of a forward, S tokens up to the last of them, H heads of queries, G of keys and values,
K numbers of a head.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from pipelined.training.graph.recompute import attention_core
from pipelined.training.stages.key_values import with_past

Dropout = Callable[[torch.Tensor], torch.Tensor]


def causal_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: Dropout | None = None
) -> torch.Tensor:
    """Each token's mean of the values of the tokens up to it, (B, H, T, K), weighted by how its query meets their keys.

    Args:
        query: (B, H, T, K).
        key, value: (B, G, T, K); each of them serves H / G heads of queries. Those of the tokens before are added here.
        dropout: the dropout of the weights (B, H, T, S), which a fused kernel would draw from a stream of its own.
    """
    return attention_core(partial(_core, dropout=dropout), query, *with_past(key, value))


def _core(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, dropout: Dropout | None = None) -> torch.Tensor:
    """`causal_attention` of keys and values that are all there."""
    if key.shape[1] < query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))  # (B, H, S, K)
    if dropout is None:
        has_no_past = key.shape[2] == query.shape[2]
        mask = None if has_no_past else ~_future_mask(query, key)
        return functional.scaled_dot_product_attention(query, key, value, mask, is_causal=has_no_past)
    scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[3])  # (B, H, T, S)
    weights = scores.masked_fill(_future_mask(query, key), float("-inf")).softmax(3)
    return dropout(weights).to(query.dtype) @ value


def _future_mask(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """The keys that come after a query, (T, S); the queries are those of the last tokens."""
    tokens, all_tokens = query.shape[2], key.shape[2]
    return torch.ones(tokens, all_tokens, dtype=torch.bool, device=query.device).triu(1 + all_tokens - tokens)
