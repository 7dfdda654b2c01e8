"""The sizes of Llama-like models: what one is made of, published ones, and every parameter in closed form. No torch.

Names are Hugging Face's, but that a layer is one part of a name: `layers_3.self_attn.q_proj.weight`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from apps.common.lm.models.gpt2_presets import Shapes
from pipelined.errors import UsageError

KINDS = ("llama", "qwen2", "qwen3")
"""What Hugging Face calls them. In qwen2 queries, keys and values have biases; in qwen3 queries and keys have norms."""


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """The configuration of a Llama-like model.

    Raises:
        UsageError: a size is not positive, or the groups of heads do not come out even.
    """

    layers: int
    """Transformer blocks, L."""
    d_model: int
    """Width of the residual stream, C."""
    heads: int
    """Heads of queries a block, H."""
    kv_heads: int
    """Heads of keys and values, G, each for H / G heads of queries; divides heads."""
    hidden: int
    """Width of the gated feed-forward, F."""
    vocab: int
    """Symbols, V."""
    head_width: int = 0
    """Width of a head, D; 0: C / H."""
    positions: int = 2048
    """The longest sequence, in tokens."""
    theta: float = 10000.0
    """Base of the angles by which positions turn queries and keys."""
    epsilon: float = 1e-5
    """Added to the mean square in a norm."""
    tied: bool = False
    """Whether the head's matrix is the token embedding."""
    kind: str = "llama"
    """One of `KINDS`."""
    deviation: float = 0.02
    """Standard deviation of the matrices' initial values."""

    def __post_init__(self) -> None:
        for name in ("layers", "d_model", "heads", "kv_heads", "hidden", "vocab", "positions"):
            if getattr(self, name) < 1:
                raise UsageError(f"a model's {name} must be at least 1 (got: {getattr(self, name)}); raise it")
        if self.heads % self.kv_heads:
            fact = f"heads of queries cannot share those of keys evenly (heads: {self.heads}, keys: {self.kv_heads})"
            raise UsageError(f"{fact}; take a divisor")
        if (not self.head_width and self.d_model % self.heads) or self.width % 2:
            fact = f"no even number of features for a head (d_model: {self.d_model}, heads: {self.heads})"
            raise UsageError(f"{fact}; rotary embeddings turn pairs")

    @property
    def width(self) -> int:
        """Width of a head, D."""
        return self.head_width or self.d_model // self.heads

    @property
    def row_layers(self) -> int:
        """Layers between which stages can be cut: the blocks, the embedding, the last norm and the head."""
        return self.layers + 3

    @property
    def parameters(self) -> int:
        """How many numbers the model learns; a tied embedding counts once."""
        return sum(map(prod, shapes(self).values()))

    def to_dict(self) -> dict[str, Any]:
        """The sizes as JSON can hold them."""
        return asdict(self)


_SMOL = LlamaConfig(
    layers=30, d_model=576, heads=9, kv_heads=3, hidden=1536, vocab=49152, positions=8192, theta=1e5, tied=True
)
_LLAMA2 = LlamaConfig(layers=32, d_model=4096, heads=32, kv_heads=32, hidden=11008, vocab=32000, positions=4096)

LLAMA_PRESETS: Mapping[str, LlamaConfig] = {
    "tiny": LlamaConfig(
        layers=4, d_model=128, heads=4, kv_heads=2, hidden=352, vocab=256, positions=256, tied=True, deviation=0.06
    ),
    "smollm2-135m": _SMOL,
    "smollm2-360m": replace(_SMOL, layers=32, d_model=960, heads=15, kv_heads=5, hidden=2560),
    "tinyllama-1.1b": LlamaConfig(layers=22, d_model=2048, heads=32, kv_heads=4, hidden=5632, vocab=32000),
    "llama2-7b": _LLAMA2,
    "llama3-8b": replace(_LLAMA2, kv_heads=8, hidden=14336, vocab=128256, positions=8192, theta=5e5),
    "qwen2.5-0.5b": LlamaConfig(
        layers=24,
        d_model=896,
        heads=14,
        kv_heads=2,
        hidden=4864,
        vocab=151936,
        positions=32768,
        theta=1e6,
        epsilon=1e-6,
        tied=True,
        kind="qwen2",
    ),
    "qwen3-0.6b": LlamaConfig(
        layers=28,
        d_model=1024,
        heads=16,
        kv_heads=8,
        hidden=3072,
        vocab=151936,
        head_width=128,
        positions=40960,
        theta=1e6,
        epsilon=1e-6,
        tied=True,
        kind="qwen3",
    ),
}
"""Known models: `tiny` learns on a laptop in minutes, the others are the published ones."""


def shapes(config: LlamaConfig) -> Shapes:
    """Every parameter of the model once, in the order of its layers."""
    c, v = config.d_model, config.vocab
    parameters: Shapes = {"embed_tokens.weight": (v, c)}
    for number in range(config.layers):
        parameters |= {f"layers_{number}.{name}": shape for name, shape in _block_shapes(config).items()}
    return parameters | {"norm.weight": (c,)} | ({} if config.tied else {"lm_head.weight": (v, c)})


def _block_shapes(config: LlamaConfig) -> Shapes:
    """A block's parameters: 2 (H + G) D C + 3 F C + 2 C numbers, besides biases and norms of queries and keys."""
    c, width = config.d_model, config.width
    queries, keys = config.heads * width, config.kv_heads * width
    outputs = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
    shapes: Shapes = {"input_layernorm.weight": (c,)}
    for name, rows in outputs.items():
        shapes[f"self_attn.{name}.weight"] = (rows, c)
        shapes |= {f"self_attn.{name}.bias": (rows,)} if config.kind == "qwen2" else {}
    shapes["self_attn.o_proj.weight"] = (c, queries)
    shapes |= {f"self_attn.{name}.weight": (width,) for name in ("q_norm", "k_norm") if config.kind == "qwen3"}
    gated: Shapes = {f"mlp.{name}.weight": (config.hidden, c) for name in ("gate_proj", "up_proj")}
    return shapes | {"post_attention_layernorm.weight": (c,)} | gated | {"mlp.down_proj.weight": (c, config.hidden)}
