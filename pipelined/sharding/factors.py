"""Factors by operator: how a `--layout` names them. No torch."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from pipelined.errors import UsageError


class Factors(NamedTuple):
    """Ways in which rows (p0), columns (p1) and the contraction (p2) of a multiplication are split."""

    rows: int
    columns: int
    contraction: int

    def __str__(self) -> str:
        """As `--layout` has them: rows.columns.contraction."""
        return ".".join(map(str, self))


def factors_of(
    layout: str, ranks: int, named: Mapping[str, Mapping[str, Factors]], default: Mapping[str, Factors] | None = None
) -> dict[str, Factors]:
    """The factors of every operator.

    Args:
        layout: the name of a layout, or OPERATOR=ROWS.COLUMNS.CONTRACTION, separated by commas.
        ranks: T.
        named: the layouts that go by a name, each with the factors of all operators.
        default: of operators that may be left out.
    Raises:
        UsageError: the text is neither, names another operator or one twice, or leaves one out; a product is not T.
    """
    if layout in named:
        return dict(named[layout])
    operators = list(next(iter(named.values())))
    by_operator = {**(default or {}), **dict(_parse_factors(layout, operators, named))}
    if missing := [name for name in operators if name not in by_operator]:
        fact = f"no factors of {', '.join(missing)} (layout: {layout!r})"
        raise UsageError(f"{fact}; add them, or use {' or '.join(named)}")
    for name, factors in by_operator.items():
        if prod(factors) != ranks:
            fact = f"{name}={factors} is for {prod(factors)} ranks (ranks of a worker: {ranks})"
            raise UsageError(f"{fact}; choose factors with that product")
    return {name: by_operator[name] for name in operators}


def _parse_factors(layout: str, operators: Sequence[str], named: Mapping[str, object]) -> list[tuple[str, Factors]]:
    pairs = []
    for word in layout.split(","):
        name, _, text = word.partition("=")
        numbers = text.split(".")
        if name not in operators or len(numbers) != 3 or not all(n.isdecimal() and int(n) for n in numbers):
            fact = f"no layout: {word!r} (layout: {layout!r})"
            remedy = f"OPERATOR=ROWS.COLUMNS.CONTRACTION for {', '.join(operators)}"
            raise UsageError(f"{fact}; write {' or '.join(named)}, or {remedy}")
        pairs.append((name, Factors(*map(int, numbers))))
    if len({name for name, _ in pairs}) < len(pairs):
        raise UsageError(f"an operator is named twice (layout: {layout!r}); name each once")
    return pairs
