"""Causal attention by heads and sequences: each rank has its own heads of its own sequences, and sends nothing.

Shapes: B sequences, T tokens of a sequence, H heads, K numbers of a head; each but T may be a rank's share.
"""

from functools import partial

import torch

from apps.common.lm.models.attention import Dropout, causal_attention
from pipelined.random.mask import dropout_of_piece
from pipelined.sharding import Layout, Shards
from pipelined.sharding.operators.verbs import Value, Verbs
from pipelined.training.graph.recompute import run_recomputed

HEADS = 3
"""The dimension of the heads in (B, T, 3, H, K); one fewer after the attention."""


async def attend(verbs: Verbs, x: Value, p: float = 0.0, key: int | None = None, *, recompute: bool = False) -> Value:
    """Causal attention.

    Args:
        x: queries, keys and values, (B, T, 3, H, K), split by sequences and heads.
        p: probability that a weight is dropped.
        key: of the weights' mask; None: nothing is dropped.
        recompute: whether the backward computes it again from x, and keeps nothing else.
    Returns: (B, T, H, K), split alike.
    """
    sequences, tokens, _, heads, numbers = x.shards.lengths
    cuts = {d if d < HEADS else d - 1: axes for d, axes in x.shards.layout.cuts.items()}
    result = Shards(x.shards.mesh, (sequences, tokens, heads, numbers), Layout.of(cuts))
    work = partial(local_attention, dropout=None if key is None or p == 0.0 else _dropout(x.shards, verbs.rank, p, key))
    return await verbs.compute("attention", partial(run_recomputed, work) if recompute else work, x, result=result)


def _dropout(shards: Shards, rank: int, p: float, key: int) -> Dropout:
    """Dropout of a rank's weights, (B, H, T, T), by their places among the weights of all ranks."""
    sequences, tokens, _, heads, _ = shards.lengths
    own_sequences, _, _, own_heads, _ = shards.pieces(rank)
    piece = own_sequences, own_heads, ((0, tokens),), ((0, tokens),)
    return partial(dropout_of_piece, p=p, key=key, whole=(sequences, heads, tokens, tokens), piece=piece)


def local_attention(x: torch.Tensor, dropout: Dropout | None = None) -> torch.Tensor:
    """Attention of whole heads: (B, T, 3, H, K) to (B, T, H, K)."""
    query, key, value = x.permute(2, 0, 3, 1, 4)  # each (B, H, T, K)
    return causal_attention(query, key, value, dropout).transpose(1, 2)
