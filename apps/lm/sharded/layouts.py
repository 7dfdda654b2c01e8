"""How the multiplications of a GPT-2 are split over T ranks: named layouts, and factors by operator. No torch."""

from collections.abc import Mapping

from pipelined.errors import UsageError

Factors = tuple[int, int, int]
"""Ranks that split a multiplication's rows, columns and contraction."""

OPERATORS = ("c_attn", "attn.c_proj", "c_fc", "mlp.c_proj", "wte")
"""What has factors: a block's four multiplications, alike in all blocks, and the matrix of embedding and head."""

NAMES = ("data", "megatron")
"""Layouts that go by a name."""


def factors_of(layout: str, ranks: int) -> dict[str, Factors]:
    """The factors of every operator.

    Args:
        layout: one of `NAMES`, or OPERATOR=ROWS.COLUMNS.CONTRACTION, separated by commas; wte may be left out and is
            then split by the vocabulary alone.
        ranks: T.
    Raises:
        UsageError: the text is neither, names another operator or one twice, or leaves one out; a product is not T.
    """
    columns, contraction = (1, ranks, 1), (1, 1, ranks)
    if layout == "data":
        return dict.fromkeys(OPERATORS, (ranks, 1, 1))
    if layout == "megatron":
        each = columns, contraction, columns, contraction, columns
        return dict(zip(OPERATORS, each, strict=True))
    found = {"wte": columns} | dict(_read(layout))
    if missing := [name for name in OPERATORS if name not in found]:
        raise UsageError(f"no factors of {', '.join(missing)} (layout: {layout!r}); add them, or use {_known()}")
    for name, (p0, p1, p2) in found.items():
        if p0 * p1 * p2 != ranks:
            fact = f"{name}={p0}.{p1}.{p2} is for {p0 * p1 * p2} ranks (ranks of a worker: {ranks})"
            raise UsageError(f"{fact}; choose factors with that product")
    return found


def require_fitting(factors: Mapping[str, Factors], heads: int, rows: int | None = None) -> None:
    """Refuse factors that leave ranks without a head, or without a sequence of a microbatch.

    Args:
        rows: sequences in a microbatch; None: of any number.
    Raises:
        UsageError: names the operator, both numbers, and the remedy.
    """
    for name in ("c_attn", "attn.c_proj"):
        _, columns, contraction = factors[name]
        if columns * contraction > heads:
            fact = f"shards: {columns * contraction}, heads: {heads}"
            raise UsageError(f"more column shards than heads ({name}, {fact}); split the rows further")
    for name, (shards, _, _) in factors.items():
        if rows is not None and shards > rows:
            fact = f"more row shards than sequences in a microbatch ({name}, shards: {shards}, sequences: {rows})"
            raise UsageError(f"{fact}; split the rows into {rows} at most, or use larger microbatches")


def _read(layout: str) -> list[tuple[str, Factors]]:
    read = []
    for word in layout.split(","):
        name, _, text = word.partition("=")
        numbers = text.split(".")
        if name not in OPERATORS or len(numbers) != 3 or not all(n.isdecimal() and int(n) for n in numbers):
            fact = f"no layout: {word!r} (layout: {layout!r})"
            raise UsageError(
                f"{fact}; write {_known()}, or OPERATOR=ROWS.COLUMNS.CONTRACTION for {', '.join(OPERATORS)}"
            )
        p0, p1, p2 = map(int, numbers)
        read.append((name, (p0, p1, p2)))
    if len({name for name, _ in read}) < len(read):
        raise UsageError(f"an operator is named twice (layout: {layout!r}); name each once")
    return read


def _known() -> str:
    return " or ".join(NAMES)
