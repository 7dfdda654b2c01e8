"""The sizes of SWARM's Transformer: what it is made of, known presets, and its parameters in closed form. No torch.

Layers that share parameters are one layer of the row that stages are cut from, run several times, so that no cut can
separate them.

Source: Ryabinin et al., SWARM Parallelism, sections 4.1 to 4.3, appendices F, G and I.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from apps.common.flags.paths import ROTARY_TYPE
from apps.common.lm.models.gpt2_presets import ModelConfig, Shapes, affine
from pipelined.errors import UsageError
from pipelined.programs.partition import partition

SQUEEZES = ("none", "bottleneck", "maxout")
"""What makes the residual stream narrow between stages (appendix I)."""
FACTORS = (2, 4)
"""How many times narrower it becomes."""
BASE = 10000.0
"""The slowest pair of a head turns nearly this many times slower than the fastest (RoFormer, section 3.2.2)."""


@dataclass(frozen=True)
class RotaryConfig(ModelConfig):
    """What the paper's model is made of; its feed-forward is 4 C wide.

    Raises:
        UsageError: sizes that do not fit one another; see `ModelConfig`.
    """

    tied: bool = False
    """Always False: the embedding and the head lie in different stages, and stages share nothing."""
    shared: int = 1
    """Consecutive layers with one set of parameters, as in ALBERT; divides layers."""
    squeeze: str = "none"
    """What makes the stream narrow where it leaves a stage: none, bottleneck or maxout."""
    factor: int = 2
    """How many times narrower, k: 2 or 4."""
    narrow: tuple[int, ...] = ()
    """Layers of the row into which the narrow stream flows; `cut_for` finds them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tied:
            raise UsageError("a swarm's stages share no parameter, the embedding and the head neither; leave it untied")
        if self.shared < 1 or self.layers % self.shared:
            fact = f"the layers do not fall into groups that share (layers: {self.layers}, shared: {self.shared})"
            raise UsageError(f"{fact}; take a divisor of the layers")
        if (self.d_model // self.heads) % 2:
            fact = f"rotary embeddings turn pairs (d_model: {self.d_model}, heads: {self.heads})"
            raise UsageError(f"{fact}; let each head be of even width")
        self._check_squeeze()

    def _check_squeeze(self) -> None:
        if self.squeeze not in SQUEEZES:
            raise UsageError(
                f"nothing called {self.squeeze!r} makes a stream narrow; choose one of {', '.join(SQUEEZES)}"
            )
        if self.factor not in FACTORS or self.d_model % self.factor:
            fact = f"the width cannot be divided so (d_model: {self.d_model}, factor: {self.factor})"
            raise UsageError(f"{fact}; take a factor of {' or '.join(map(str, FACTORS))} that divides the width")
        inner = range(1, self.groups + 2)
        if not all(layer in inner for layer in self.narrow) or (self.narrow and self.squeeze == "none"):
            fact = f"no stream to make narrow (squeeze: {self.squeeze}, before layers: {self.narrow}, of: {inner})"
            raise UsageError(f"{fact}; let cut_for find them")

    @property
    def groups(self) -> int:
        """Sets of parameters among the layers."""
        return self.layers // self.shared

    @property
    def narrow_width(self) -> int:
        """C/k."""
        return self.d_model // self.factor

    @property
    def row_layers(self) -> int:
        """Layers between which stages can be cut."""
        return self.groups + 2

    @property
    def parameters(self) -> int:
        """How many numbers the model learns."""
        return sum(map(prod, shapes(self).values()))

    @property
    def kind(self) -> str:
        """The `model_type` of an export."""
        return ROTARY_TYPE

    def to_dict(self) -> dict[str, Any]:
        """The sizes as JSON can hold them."""
        return asdict(self)

    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share to fit this model."""
        rotary_sizes = {name: getattr(self, name) for name in ("shared", "squeeze", "factor")}
        return {**super().identity(), "model": "rotary", **rotary_sizes, "narrow": list(self.narrow)}


_OURS = RotaryConfig(layers=48, d_model=4096, heads=32, vocab=50257, positions=2048, dropout=0.0, shared=16)
_BASE = replace(_OURS, layers=12, d_model=768, heads=12, positions=512, shared=1)

ROTARY_PRESETS: Mapping[str, RotaryConfig] = {
    "tiny": RotaryConfig(layers=4, d_model=128, heads=4, vocab=256, positions=256, dropout=0.0, deviation=0.06),
    "base": _BASE,
    "xxlarge": replace(_BASE, d_model=4096, heads=32),
    "gpt3": replace(_BASE, d_model=12288, heads=96),
    "ours": _OURS,
    "ours-unshared": replace(_OURS, shared=1),
}
"""Known models: `tiny` learns on a laptop in minutes, `base`, `xxlarge` and `gpt3` are 12 layers of the widths and
heads of appendix F, and `ours` is section 4.3's (3 groups of 16 layers, GPT-2's vocabulary, sequences up to 2048)."""


def cut_for(config: RotaryConfig, stages: int, sequence: int) -> tuple[RotaryConfig, tuple[range, ...]]:
    """Cut the model into stages so that the slowest is as fast as can be.

    Returns: the model, with a narrow stream between these stages if it squeezes, and each stage's layers.
    Raises:
        UsageError: more stages than the row has layers.
    """
    costs = layer_costs(config, sequence)
    if not 1 <= stages <= len(costs):
        fact = f"the model cannot be cut so (stages: {stages}, layers that can be cut apart: {len(costs)})"
        raise UsageError(f"{fact}; take between 1 and {len(costs)} stages")
    cut = tuple(partition(costs, stages))
    narrow = () if config.squeeze == "none" else tuple(layers.start for layers in cut[1:])
    return replace(config, narrow=narrow), cut


def layer_costs(config: RotaryConfig, sequence: int) -> list[float]:
    """Floating-point operations a token of a forward through each layer of the row.

    A layer multiplies a token by 16 C² weights (4 C² of attention, 12 C² of the gated feed-forward) and attends to the
    whole sequence; shared layers are run as often as there are of them.
    """
    width = config.d_model
    layer = 2.0 * 16 * width**2 + 4.0 * sequence * width
    return [float(width), *[layer * config.shared] * config.groups, 2.0 * config.vocab * width]


def layer_shapes(config: RotaryConfig) -> list[Shapes]:
    """Every parameter of each layer of the row: the embedding, the groups, then the final norm with the head."""
    width = config.d_model
    vocabulary = (config.vocab, config.d_model)
    groups = [_group_shapes(f"transformer.h.{i}.", width) for i in range(config.groups)]
    head = affine("transformer.ln_f.", width) | {"lm_head.weight": vocabulary}
    row: list[Shapes] = [{"transformer.wte.weight": vocabulary}, *groups, head]
    for layer in config.narrow:
        row[layer - 1] |= _squeeze_shapes(config, layer - 1)
        row[layer] |= {f"transformer.widen.{layer}.weight": (width, config.narrow_width)}
    return row


def shapes(config: RotaryConfig) -> Shapes:
    """Every parameter of the model, in the order of its layers."""
    return {name: shape for layer in layer_shapes(config) for name, shape in layer.items()}


def _group_shapes(prefix: str, width: int) -> Shapes:
    """A group's parameters: 16 C² + 17 C numbers."""
    return {
        **affine(f"{prefix}ln_1.", width),
        **affine(f"{prefix}attn.c_attn.", width, 3 * width),
        **affine(f"{prefix}attn.c_proj.", width, width),
        **affine(f"{prefix}ln_2.", width),
        **affine(f"{prefix}mlp.c_fc.", width, 8 * width),
        **affine(f"{prefix}mlp.c_proj.", 4 * width, width),
    }


def _squeeze_shapes(config: RotaryConfig, layer: int) -> Shapes:
    prefix = f"transformer.squeeze.{layer}."
    width = config.d_model
    narrow = config.narrow_width
    linear = {f"{prefix}linear.weight": (narrow, width)} if config.squeeze == "bottleneck" else {}
    return affine(f"{prefix}ln_in.", width) | linear | affine(f"{prefix}ln_out.", narrow)
