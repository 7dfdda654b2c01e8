"""Self-attention as a layer of a row: one tensor in, one out."""

import torch
from torch import nn


class SelfAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` of a tensor (rows, tokens, width) to itself, with the same parameters.

    Args:
        embed_dim, num_heads, dropout, bias: as of torch's.
        causal: whether a token sees only itself and those before it.
    """

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float = 0.0, *, bias: bool = True, causal: bool = False
    ):
        super().__init__(embed_dim, num_heads, dropout, bias, batch_first=True)
        self.causal = causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        if x.dim() != 3:
            raise ValueError(f"attention of (rows, tokens, width), not of {tuple(x.shape)}")
        mask = None
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device, dtype=x.dtype)
        output = super().forward(x, x, x, need_weights=False, attn_mask=mask, is_causal=self.causal)
        return output[0]
