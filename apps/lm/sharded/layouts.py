"""How the multiplications of a GPT-2 are split over T ranks: named layouts, and factors by operator. No torch."""

import json
from collections.abc import Mapping
from math import isqrt, prod
from pathlib import Path

from pipelined.errors import UsageError
from pipelined.sharding import factors
from pipelined.sharding.factors import Factors

OPERATORS = ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj", "wte")
"""What has factors: a block's four multiplications, alike in all blocks, and the matrix of embedding and head."""


def factors_of(layout: str, ranks: int) -> dict[str, Factors]:
    """The factors of every operator; see `pipelined.sharding.factors.factors_of`.

    Args:
        layout: also the path of a file with a strategy that `python -m pipelined shard --out` wrote; wte may be left
            out of factors by operator, and is then split by the vocabulary alone.
        ranks: T.
    """
    columns, contraction = (1, ranks, 1), (1, 1, ranks)
    megatron = dict(zip(OPERATORS, (columns, contraction, columns, contraction, columns), strict=True))
    whole = dict.fromkeys(OPERATORS, (ranks, 1, 1))
    named = {"data": whole, "zero1": whole, "zero2": whole, "zero3": whole}
    named |= {"summa": dict.fromkeys(OPERATORS, grid(ranks)), "megatron": megatron}
    text = _of_file(Path(layout)) if Path(layout).is_file() else layout
    return factors.factors_of(text, ranks, named, {"wte": columns})


def grid(ranks: int) -> Factors:
    """The factors of SUMMA: rows and columns of ranks, as equal as they can be, the columns not fewer."""
    rows = max(number for number in range(1, isqrt(ranks) + 1) if ranks % number == 0)
    return rows, ranks // rows, 1


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


def _of_file(path: Path) -> str:
    """Factors by operator over all levels of the machine together; a head is split as the embedding is.

    Raises:
        UsageError: the file has no strategy, or one that is not trained.
    """
    found = dict[str, set[str]]()
    try:
        for row in json.loads(path.read_text())["strategy"]:
            if row["state"] != "none" or row.get("anew"):
                what = "an input that is gathered anew" if row["state"] == "none" else row["state"]
                raise UsageError(f"{path}: {row['op']} has {what}, which no operator trains by yet; take --space paper")
            levels = row["factors"] if isinstance(row["factors"][0], list) else [row["factors"]]
            factors = (prod(level[place] for level in levels) for place in range(3))
            name = "wte" if row["op"] == "lm_head" else str(row["op"])
            found.setdefault(name, set()).add(".".join(map(str, factors)))
    except (ValueError, LookupError, TypeError, OSError) as error:
        if isinstance(error, UsageError):
            raise
        fact = f"{path} is no layout ({type(error).__name__}: {error})"
        raise UsageError(f"{fact}; write one with `python -m pipelined shard --out`") from error
    for name, each in found.items():
        if len(each) > 1:
            raise UsageError(f"{path} splits {name} in two ways; embedding and head have one layout")
    return ",".join(f"{name}={min(each)}" for name, each in found.items())
