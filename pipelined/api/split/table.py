"""The table of layers: which class is split how. What is not in it is kept whole, with its rows split."""

from collections.abc import Mapping, Sequence

from torch import nn

from pipelined.api.split.layer import SplitLayer
from pipelined.api.split.local import LOCAL, LocalLayer, SplitDropout, SplitFlatten
from pipelined.api.split.multiplications import Multiplication, SplitConv, SplitEmbedding, SplitLinear
from pipelined.api.split.norms import SplitBatchNorm, SplitLayerNorm, SplitRMSNorm
from pipelined.api.split.own import Layouts, OwnLayer
from pipelined.errors import UsageError
from pipelined.sharding import factors
from pipelined.sharding.factors import Factors

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


def leaves(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """A layer of the row, or those of an `nn.Sequential` in their order, with their names."""
    if type(module) is not nn.Sequential:
        return [(name, module)]
    return [leaf for key, each in module._modules.items() if each for leaf in leaves(f"{name}.{key}", each)]


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
    every = [leaf for name, module in row for leaf in leaves(name, module)]
    weights = {name: aliases.get(f"{name}.weight", f"{name}.weight") for name, each in every if multiplication(each)}
    embedded = {weights[name] for name, module in every if name in weights and isinstance(module, nn.Embedding)}
    split = _factors({name: weight in embedded for name, weight in weights.items()}, ranks, layout or LAYOUT)
    return [_layer(name, module, ranks, split) for name, module in every]


def _factors(embeds: Mapping[str, bool], ranks: int, layout: str) -> dict[str, Factors]:
    """The factors of every layer that has some.

    Args:
        embeds: their names, and whether they have an embedding's matrix, which `megatron` splits by the vocabulary.
    """
    columns, contraction = (1, ranks, 1), (1, 1, ranks)
    megatron, turn = dict[str, Factors](), 0
    for name, tied in embeds.items():
        megatron[name] = columns if tied or turn % 2 == 0 else contraction
        turn += not tied
    named = {"data": dict.fromkeys(embeds, (ranks, 1, 1)), "megatron": megatron}
    return factors.factors_of(layout, ranks, named, megatron)


def _layer(name: str, module: nn.Module, ranks: int, split: Mapping[str, Factors]) -> SplitLayer:
    layer, kind = name.partition(".")[0], type(module)
    if isinstance(stated := getattr(module, "layouts", None), Layouts):
        return OwnLayer(name, module, ranks, layouts=stated, how="by its own layouts", layer=layer)
    if found := multiplication(module):
        return found(name, module, split[name])
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
    return OwnLayer(name, module, ranks, layouts=Layouts(), how=WHOLE, layer=layer)
