"""The sizes of BERT: what one is made of, published ones, and every parameter in closed form. No torch.

Names are those of `apps.common.lm.models.bert`; `apps.common.lm.huggingface.bert` has Hugging Face's.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from apps.common.lm.models.gpt2_presets import Shapes
from pipelined.errors import UsageError


@dataclass(frozen=True)
class BertConfig:
    """The configuration of a BERT.

    Raises:
        UsageError: a size is not positive, the heads do not divide the width, or dropout is not a probability.
    """

    layers: int
    """Transformer blocks, L."""
    d_model: int
    """Width of the stream, C."""
    heads: int
    """Attention heads a block, H; divides d_model."""
    hidden: int
    """Width of the feed-forward, F."""
    vocab: int
    """Symbols, V."""
    positions: int = 512
    """The longest sequence, in tokens."""
    types: int = 2
    """Kinds of segments; of a sequence of one segment only the first is used."""
    dropout: float = 0.1
    """Probability after the embedding, in the attention and at the end of both halves of a block."""
    tied: bool = True
    """Whether the head's matrix is the token embedding."""
    epsilon: float = 1e-12
    """Added to the variance in a norm."""
    deviation: float = 0.02
    """Standard deviation of the matrices' initial values."""

    def __post_init__(self) -> None:
        for name in ("layers", "d_model", "heads", "hidden", "vocab", "positions", "types"):
            if getattr(self, name) < 1:
                raise UsageError(f"a model's {name} must be at least 1 (got: {getattr(self, name)}); raise it")
        if self.d_model % self.heads:
            fact = f"the heads do not divide the width (d_model: {self.d_model}, heads: {self.heads})"
            raise UsageError(f"{fact}; take other heads")
        if not 0.0 <= self.dropout < 1.0:
            raise UsageError(f"dropout must lie in [0, 1) (got: {self.dropout}); 0.1 is usual, 0 turns it off")

    @property
    def parameters(self) -> int:
        """How many numbers the model learns; a tied embedding counts once."""
        return sum(map(prod, shapes(self).values()))

    def to_dict(self) -> dict[str, Any]:
        """The sizes as JSON can hold them."""
        return asdict(self)


_BASE = BertConfig(12, 768, 12, 3072, 30522)
_LARGE = replace(_BASE, layers=24, d_model=1024, heads=16, hidden=4096)

BERT_PRESETS: Mapping[str, BertConfig] = {
    "tiny": BertConfig(4, 128, 4, 512, 257, positions=256, dropout=0.0, deviation=0.06),
    "bert-base": _BASE,
    "bert-large": _LARGE,
    "chimera": replace(_LARGE, layers=48, tied=False),
}
"""Known models: `tiny` learns on a laptop in minutes, the next two are the published ones, and `chimera` is Bert-48 of
its paper (Chimera, Table 4). The 669,790,012 parameters there are these and those of the two parts that masked tokens
do not train: the pooler and the head for the next sentence."""


def affine(name: str, inputs: int, outputs: int) -> Shapes:
    """A linear map's weight and bias."""
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def norm(name: str, width: int) -> Shapes:
    """A norm's weight and bias."""
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def shapes(config: BertConfig) -> Shapes:
    """Every parameter of the model once, in the order of its layers."""
    c = config.d_model
    words = (config.vocab, config.d_model)
    parameters: Shapes = {
        "embeddings.word_embeddings.weight": words,
        "embeddings.position_embeddings.weight": (config.positions, c),
        "embeddings.token_type_embeddings.weight": (config.types, c),
        **norm("embeddings.LayerNorm", c),
    }
    for number in range(config.layers):
        parameters |= {f"layer_{number}.{name}": shape for name, shape in _block_shapes(config).items()}
    head: Shapes = {} if config.tied else {"decoder.word_embeddings.weight": words}
    return (
        parameters
        | affine("transform.dense", c, c)
        | norm("transform.LayerNorm", c)
        | head
        | {"decoder.bias": words[:1]}
    )


def _block_shapes(config: BertConfig) -> Shapes:
    """A block's parameters: 4 C² + 2 F C + 9 C + F numbers."""
    c = config.d_model
    shapes: Shapes = {}
    for name in ("query", "key", "value"):
        shapes |= affine(f"attention.self.{name}", c, c)
    shapes |= affine("attention.output.dense", c, c) | norm("attention.output.LayerNorm", c)
    shapes |= affine("intermediate.dense", c, config.hidden) | affine("output.dense", config.hidden, c)
    return shapes | norm("output.LayerNorm", c)
