"""How the multiplications of a GPT-2 are split over T ranks: named layouts, and factors by operator. No torch."""

from collections.abc import Mapping

from pipelined.errors import UsageError
from pipelined.sharding import factors
from pipelined.sharding.factors import Factors

OPERATORS = ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj", "wte")
"""What has factors: a block's four multiplications, alike in all blocks, and the matrix of embedding and head."""


def factors_of(layout: str, ranks: int) -> dict[str, Factors]:
    """The factors of every operator; see `pipelined.sharding.factors.factors_of`.

    Args:
        layout: wte may be left out of factors by operator, and is then split by the vocabulary alone.
        ranks: T.
    """
    columns, contraction = (1, ranks, 1), (1, 1, ranks)
    megatron = dict(zip(OPERATORS, (columns, contraction, columns, contraction, columns), strict=True))
    named = {"data": dict.fromkeys(OPERATORS, (ranks, 1, 1)), "megatron": megatron}
    return factors.factors_of(layout, ranks, named, {"wte": columns})


def require_fitting(split: Mapping[str, Factors], heads: int, rows: int | None = None) -> None:
    """Refuse factors that leave ranks without a head, or without a sequence of a microbatch.

    Args:
        rows: sequences in a microbatch; None: of any number.
    Raises:
        UsageError: names the operator, both numbers, and the remedy.
    """
    for name in ("c_attn", "attn.c_proj"):
        _, columns, contraction = split[name]
        if columns * contraction > heads:
            fact = f"shards: {columns * contraction}, heads: {heads}"
            raise UsageError(f"more column shards than heads ({name}, {fact}); split the rows further")
    for name, (shards, _, _) in split.items():
        if rows is not None and shards > rows:
            fact = f"more row shards than sequences in a microbatch ({name}, shards: {shards}, sequences: {rows})"
            raise UsageError(f"{fact}; split the rows into {rows} at most, or use larger microbatches")
