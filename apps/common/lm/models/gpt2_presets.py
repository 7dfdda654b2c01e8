"""The sizes of GPT-2: what a model is made of, known presets, and every parameter's name and shape in closed form.

Nothing here needs torch, so that a plan or an error can be printed before torch is imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

from pipelined.errors import UsageError

Shapes = dict[str, tuple[int, ...]]
"""Parameter names (Hugging Face's) and their shapes."""


@dataclass(frozen=True)
class ModelConfig:
    """The configuration of a GPT-2.

    Raises:
        UsageError: a size is not positive, the heads do not divide the width, or dropout is not a probability.
    """

    layers: int
    """Transformer blocks, L."""
    d_model: int
    """Width of the residual stream, C."""
    heads: int
    """Attention heads a block, H; divides d_model."""
    vocab: int
    """Symbols, V."""
    positions: int = 1024
    """The longest sequence, P, in tokens."""
    dropout: float = 0.1
    """Probability used after the embedding, in the attention and at the end of both halves of a block."""
    tied: bool = True
    """Whether the head's matrix is the token embedding."""
    deviation: float = 0.02
    """Standard deviation of the matrices' initial values; a narrow model learns sooner from larger ones."""

    def __post_init__(self) -> None:
        for name in ("layers", "d_model", "heads", "vocab", "positions"):
            if getattr(self, name) < 1:
                raise UsageError(f"a model's {name} must be at least 1 (got: {getattr(self, name)}); raise it")
        if self.d_model % self.heads:
            near = max(h for h in range(1, self.heads + 1) if self.d_model % h == 0)
            raise UsageError(
                f"the heads do not divide the width (d_model: {self.d_model}, heads: {self.heads}); "
                f"give --heads {near}, or a --d-model that {self.heads} divides"
            )
        if self.deviation <= 0.0:
            raise UsageError(f"the initial deviation must be positive (got: {self.deviation}); 0.02 is GPT-2's")
        if not 0.0 <= self.dropout < 1.0:
            raise UsageError(f"dropout must lie in [0, 1) (got: {self.dropout}); 0.1 is usual, 0 turns it off")

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share to fit this model; dropout may change from run to run."""
        names = ("layers", "d_model", "heads", "vocab", "positions", "tied")
        return {"model": "gpt2", **{name: getattr(self, name) for name in names}}

    def check_sequence(self, sequence: int) -> None:
        """Raise UsageError unless the model has a position for every token of a sequence."""
        if not 1 <= sequence <= self.positions:
            raise UsageError(
                f"a sequence does not fit the model's positions (sequence: {sequence}, positions: {self.positions}); "
                f"take --seq between 1 and {self.positions}"
            )

    def check_vocabulary(self, symbols: int) -> None:
        """Raise UsageError unless the model has an embedding for every symbol of a tokenizer."""
        if symbols > self.vocab:
            raise UsageError(
                f"the tokenizer has more symbols than the model (tokenizer: {symbols}, model: {self.vocab}); "
                f"take --vocab {symbols} or another --tokenizer"
            )


_GPT2 = ModelConfig(layers=12, d_model=768, heads=12, vocab=50257)
_AUTODDL = ModelConfig(layers=8, d_model=8192, heads=64, vocab=51200)

PRESETS: Mapping[str, ModelConfig] = {
    "tiny": ModelConfig(layers=4, d_model=128, heads=4, vocab=256, positions=256, dropout=0.0, deviation=0.06),
    "gpt2": _GPT2,
    "gpt2-medium": replace(_GPT2, layers=24, d_model=1024, heads=16),
    "gpt2-large": replace(_GPT2, layers=36, d_model=1280, heads=20),
    "gpt2-xl": replace(_GPT2, layers=48, d_model=1600, heads=25),
    "chimera": replace(_GPT2, layers=64, d_model=1280, heads=20, tied=False),
    "autoddl-8": _AUTODDL,
    "autoddl-20": replace(_AUTODDL, layers=20),
    "autoddl-44": replace(_AUTODDL, layers=44),
    "autoddl-small": replace(_AUTODDL, layers=24, d_model=1024, heads=16),
    "autoddl-large": replace(_AUTODDL, layers=28, d_model=4096, heads=32),
    "autoddl-deep": replace(_AUTODDL, layers=36, d_model=4096, heads=32),
}
"""Known models: `tiny` learns on a laptop in minutes, `gpt2…` are the published ones, `chimera` is the one of its paper
(Chimera, Table 4: 64 layers and 1,389,327,360 parameters), and `autoddl-…` are those of AutoDDL (sections 5.2.3, 5.3.3
and 5.4; its vocabulary is not printed, and 51,200 comes to the parameters that are)."""


class Multiplication(NamedTuple):
    """A matrix multiplication of the model, as it may be split over ranks.

    Args:
        module: the name of its module in a block, or of the embedding.
        inputs, outputs: the dimensions of a token before and after it.
        input_stream, output_stream: the streams before and after it; those of one name have one layout.
        norm: the norm in a block between the stream that it reads and its input.
        split: the dimension of the outputs that is split; of the inputs the first is.
    """

    module: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_stream: str
    output_stream: str | None
    norm: str | None = None
    split: int = 0


def block_multiplications(config: ModelConfig) -> dict[str, Multiplication]:
    """Those of every block by the names that layouts give them, in order; attention stands after the first."""
    c = config.d_model
    heads = (config.heads, config.d_model // config.heads)
    return {
        "c_attn": Multiplication("attn.c_attn", (c,), (3, *heads), "residual", "core", norm="ln_1", split=1),
        "attn.c_proj": Multiplication("attn.c_proj", heads, (c,), "core", "residual"),
        "c_fc": Multiplication("mlp.c_fc", (c,), (4 * c,), "residual", "hidden", norm="ln_2"),
        "mlp.c_proj": Multiplication("mlp.c_proj", (4 * c,), (c,), "hidden", "residual"),
    }


def multiplications(config: ModelConfig) -> dict[str, Multiplication]:
    """Those of `block_multiplications`, and the head's, which has the matrix of the embedding where that is tied."""
    head = Multiplication("wte", (config.d_model,), (config.vocab,), "residual", None, norm="ln_f")
    return {**block_multiplications(config), "wte": head}


def layer_shapes(config: ModelConfig) -> list[Shapes]:
    """Every parameter of each layer: the embedding, the blocks, then the final norm with the head.

    A tied head lists the embedding's matrix again, as it needs it too.
    """
    blocks = [_block_shapes(f"transformer.h.{i}.", config) for i in range(config.layers)]
    return [_embedding_shapes(config), *blocks, _head_shapes(config)]


def shapes(config: ModelConfig) -> Shapes:
    """Every parameter of the model once, in the order of its layers."""
    return {name: shape for layer in layer_shapes(config) for name, shape in layer.items()}


def parameters(config: ModelConfig) -> int:
    """How many numbers the model learns; a tied embedding counts once."""
    return sum(map(prod, shapes(config).values()))


def layer_costs(config: ModelConfig, sequence: int) -> list[float]:
    """Floating-point operations a token of a forward through each layer.

    A block multiplies a token by 12 C² weights and attends to the whole sequence (2 · 2 T C; the causal half is not
    left out, as kernels seldom do); the head multiplies by V C weights; the embedding only adds.
    """
    width = config.d_model
    block = 2.0 * 12 * width**2 + 4.0 * sequence * width
    return [float(width), *[block] * config.layers, 2.0 * config.vocab * width]


def _embedding_shapes(config: ModelConfig) -> Shapes:
    return {
        "transformer.wte.weight": (config.vocab, config.d_model),
        "transformer.wpe.weight": (config.positions, config.d_model),
    }


def _head_shapes(config: ModelConfig) -> Shapes:
    matrix = "transformer.wte.weight" if config.tied else "lm_head.weight"
    return affine("transformer.ln_f.", config.d_model) | {matrix: (config.vocab, config.d_model)}


def _block_shapes(prefix: str, config: ModelConfig) -> Shapes:
    """A block's parameters: 12 C² + 13 C numbers."""
    shapes: Shapes = {}
    for multiplication in block_multiplications(config).values():
        shapes |= affine(f"{prefix}{multiplication.norm}.", config.d_model) if multiplication.norm else {}
        shapes |= affine(f"{prefix}{multiplication.module}.", prod(multiplication.inputs), prod(multiplication.outputs))
    return shapes


def affine(prefix: str, *sizes: int) -> Shapes:
    """A weight of these sizes (input first) and a bias of the last."""
    return {f"{prefix}weight": sizes, f"{prefix}bias": sizes[-1:]}
