"""The table of layers: which class is split how. What is not in it is kept whole, with its rows split."""

from collections.abc import Mapping, Sequence, Set

from torch import nn

from pipelined.errors import UsageError
from pipelined.sharding import factors
from pipelined.sharding.factors import Factors
from pipelined.training.models.attention import SelfAttention
from pipelined.training.models.split.attention import FUNCTIONS, PARTS, SplitAttention, SplitEncoderLayer, is_encoder
from pipelined.training.models.split.layer import SplitLayer
from pipelined.training.models.split.local import LOCAL, LocalLayer, SplitDropout, SplitFlatten
from pipelined.training.models.split.multiplications import Multiplication, SplitConv, SplitEmbedding, SplitLinear
from pipelined.training.models.split.norms import SplitBatchNorm, SplitLayerNorm, SplitRMSNorm
from pipelined.training.models.split.user_layer import Layouts, UserLayer

LAYOUT = "megatron"
"""The layout of several ranks, by default."""
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
NORMS: Mapping[type[nn.Module], type[SplitLayer]] = {
    nn.LayerNorm: SplitLayerNorm,
    nn.RMSNorm: SplitRMSNorm,
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d), SplitBatchNorm),
}
WHOLE = "whole, rows split"


def multiplication(module: nn.Module) -> type[Multiplication] | None:
    """The class of a layer with factors; None if it has none, as a convolution of several groups."""
    if type(module) is nn.Linear:
        return SplitLinear
    if type(module) in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        return SplitConv if module.groups == 1 and module.padding_mode == "zeros" else None
    if type(module) is nn.Embedding:
        plain = module.padding_idx is None and module.max_norm is None
        return SplitEmbedding if plain and not module.scale_grad_by_freq and not module.sparse else None
    return None


def operators(name: str, module: nn.Module) -> dict[str, str]:
    """What has factors in a layer, in the order of computing, each with the name of its weight."""
    if multiplication(module):
        return {name: f"{name}.weight"}
    if type(module) is SelfAttention:
        return {f"{name}.in_proj": f"{name}.in_proj_weight", f"{name}.out_proj": f"{name}.out_proj.weight"}
    if is_encoder(module):
        prefix = f"{name}.self_attn"
        attention = {f"{prefix}.in_proj": f"{prefix}.in_proj_weight", f"{prefix}.out_proj": f"{prefix}.out_proj.weight"}
        return {**attention, **{f"{name}.{key}": f"{name}.{key}.weight" for key in ("linear1", "linear2")}}
    return {}


def leaves(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """A layer of the row, or those of an `nn.Sequential` or an `nn.TransformerEncoder` in their order, with names."""
    if type(module) is nn.TransformerEncoder and all(map(is_encoder, module.layers)):
        inner = [(f"{name}.layers.{index}", child) for index, child in enumerate(module.layers)]
        return inner if module.norm is None else [*inner, (f"{name}.norm", module.norm)]
    if type(module) is not nn.Sequential:
        return [(name, module)]
    return [leaf for key, child in module._modules.items() if child for leaf in leaves(f"{name}.{key}", child)]


def split_row(
    row: Sequence[tuple[str, nn.Module]], aliases: Mapping[str, str], ranks: int, layout: str | None
) -> list[SplitLayer]:
    """How a team splits every layer of a row.

    Args:
        row: the layers on the meta device, by name.
        aliases: further names of parameters that layers share, with the first of each.
        layout: `data`, `megatron`, or NAME=ROWS.COLUMNS.CONTRACTION by layer; what is left out is as in `megatron`.
    Raises:
        UsageError: the layout is invalid, or leaves ranks without channels.
    """
    layers = [leaf for name, module in row for leaf in leaves(name, module)]
    weights = dict[str, str]()  # the first name of each operator's weight
    first_operators = set[str]()
    embedded = set[str]()
    for name, module in layers:
        layer_weights = {operator: aliases.get(weight, weight) for operator, weight in operators(name, module).items()}
        weights |= layer_weights
        if len(layer_weights) > 1:
            first_operators.add(next(iter(layer_weights)))
        if isinstance(module, nn.Embedding):
            embedded |= set(layer_weights.values())
    embeds = {operator: weight in embedded for operator, weight in weights.items()}
    factors_by_operator = _factors_by_operator(embeds, first_operators, ranks, str(layout or LAYOUT))
    return [split_layer(name, module, ranks, factors_by_operator) for name, module in layers]


def _factors_by_operator(
    embeds: Mapping[str, bool], first_operators: Set[str], ranks: int, layout: str
) -> dict[str, Factors]:
    """The factors of every layer that has some.

    Args:
        embeds: their names, and whether they have an embedding's matrix, which `megatron` splits by the vocabulary.
        first_operators: those with which turns begin again: of attentions, whose heads are columns.
    """
    columns, contraction = Factors(1, ranks, 1), Factors(1, 1, ranks)
    megatron = dict[str, Factors]()
    turn = 0
    for name, tied in embeds.items():
        turn = 0 if name in first_operators else turn
        megatron[name] = columns if tied or turn % 2 == 0 else contraction
        turn += not tied
    named = {"data": dict.fromkeys(embeds, Factors(ranks, 1, 1)), "megatron": megatron}
    return factors.factors_of(layout, ranks, named, megatron)


def split_layer(name: str, module: nn.Module, ranks: int, factors_by_operator: Mapping[str, Factors]) -> SplitLayer:
    """A layer, split by the factors of its operators.

    Raises:
        UsageError: ranks are left without heads or channels.
    """
    layer = name.partition(".")[0]
    kind = type(module)
    if isinstance(layouts := getattr(module, "layouts", None), Layouts):
        return UserLayer(name, module, ranks, layouts=layouts, split_text="by its own layouts", layer=layer)
    if multiplication_class := multiplication(module):
        return multiplication_class(name, module, factors_by_operator[name])
    if type(module) is SelfAttention:
        return _attention(name, module, factors_by_operator)
    if is_encoder(module):
        return _encoder(name, module, ranks, factors_by_operator)
    if kind in LOCAL:
        return LocalLayer(name, module, ranks)
    if kind in DROPOUTS:
        return SplitDropout(name, module, ranks, layer)
    if kind is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return SplitFlatten(name, module, ranks)
    if kind in NORMS:
        if getattr(module, "track_running_stats", False) and module.momentum is None:
            fact = f"layer {name} ({kind.__name__}) averages over all steps (momentum: None), which a team does not"
            raise UsageError(f"{fact}; give it a momentum, or use tensor 1")
        return NORMS[kind](name, module, ranks)
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        raise UsageError(f"layer {name} ({kind.__name__}) mixes rows in a way that no rank knows; use tensor 1")
    return UserLayer(name, module, ranks, layouts=Layouts(), split_text=WHOLE, layer=layer)


def _attention(name: str, module: nn.MultiheadAttention, factors_by_operator: Mapping[str, Factors]) -> SplitAttention:
    layer = name.partition(".")[0]
    return SplitAttention(
        name, module, factors_by_operator[f"{name}.in_proj"], factors_by_operator[f"{name}.out_proj"], layer=layer
    )


def _encoder(
    name: str, module: nn.TransformerEncoderLayer, ranks: int, factors_by_operator: Mapping[str, Factors]
) -> SplitEncoderLayer:
    """A Transformer's layer, of its layers."""
    attention = _attention(f"{name}.self_attn", module.self_attn, factors_by_operator)
    keys = [key for key in PARTS if key != "self_attn"]
    parts = {key: split_layer(f"{name}.{key}", module.get_submodule(key), ranks, factors_by_operator) for key in keys}
    layer = name.partition(".")[0]
    activation = module.activation
    if not isinstance(activation, nn.Module):
        activation = FUNCTIONS[activation]()
    parts["dropout1"] = SplitDropout(f"{name}.dropout1", module.dropout1, ranks, layer, tokens_first=True)
    parts["activation"] = LocalLayer(f"{name}.activation", activation, ranks)
    return SplitEncoderLayer(name, module, ranks, attention, parts)
