"""Layouts by name, by layer or from a file, as the options that they leave to each operator.

Data parallelism, Megatron, SUMMA and ZeRO are points of the space. Where a name leaves several (Megatron's width, how
factors lie over nodes), the cheapest of them is used. SUMMA gathers whole operands here; its loop over panels moves
the same elements.
"""

import json
from collections.abc import Iterator, Mapping
from math import isqrt
from pathlib import Path
from typing import Any

from pipelined.errors import MALFORMED, UsageError
from pipelined.sharding.factors import Factors
from pipelined.sharding.search.chain import Chain, Operator
from pipelined.sharding.search.matmul import STATES, divisors, whole
from pipelined.sharding.search.options import Option
from pipelined.sharding.search.pricing import PricedChain

BASELINES = ("data", "megatron_1d", "megatron", "summa", "zero1", "zero2", "zero3")
"""Layouts that a search's result is compared with."""
LAYOUTS = ("auto", "paper", *BASELINES)


def candidates(priced_chain: PricedChain, name: str, replicas: int | None = None) -> Iterator[list[list[Option]]]:
    """The options of each operator in a baseline, for each of its widths; nothing where the ranks do not allow it.

    Args:
        replicas: the largest p0 of `megatron`; None: any.
    """
    p = priced_chain.ranks
    if name == "megatron":
        for d in divisors(p):
            if replicas is None or d <= replicas:
                yield from _options_in_turn(priced_chain, [Factors(d, p // d, 1), Factors(d, 1, p // d)])
    elif name == "megatron_1d":
        yield from _options_in_turn(priced_chain, [Factors(1, p, 1), Factors(1, 1, p)])
    elif name == "summa":
        if isqrt(p) ** 2 == p:
            yield from _options_in_turn(priced_chain, [Factors(isqrt(p), isqrt(p), 1)], "zero3", regather_input=True)
    else:
        yield from _options_in_turn(priced_chain, [Factors(p, 1, 1)], "none" if name == "data" else name)


def _options_in_turn(
    priced_chain: PricedChain, factors: list[Factors], state: str = "none", regather_input: bool = False
) -> Iterator[list[list[Option]]]:
    """Operators take these factors in turn."""
    operators = priced_chain.chain.operators
    turns = zip(operators, factors * len(operators), strict=False)
    options = [
        [Option(option.split, state, regather_input) for option in priced_chain.options(op) if whole(option.split) == f]
        for op, f in turns
    ]
    if all(options):
        yield options


def by_layer(priced_chain: PricedChain, text: str) -> dict[str, list[Option]]:
    """The options of each operator that a layout names, as c_attn=1.2.2,c_fc=1.4.1, or a file that `--out` wrote.

    Factors over nodes and those of a node stand with a slash between them, 2.1.1/1.4.1; without one they say their
    product, however it lies over nodes.

    Raises:
        UsageError: an unknown name or layer, one named twice, factors that are none or do not come to the ranks, or a
            file without a strategy.
    """
    if Path(text).is_file():
        return _from_file(priced_chain, Path(text))
    if "=" not in text:
        known = f"{', '.join(LAYOUTS)}, factors by layer such as {_example(priced_chain)}, or a file that --out wrote"
        raise UsageError(f"no layout is called {text!r}; known: {known}")
    return _index(f"--layout {text}", [_from_text(priced_chain, *item.partition("=")[::2]) for item in text.split(",")])


def _index(source: str, pairs: list[tuple[str, list[Option]]]) -> dict[str, list[Option]]:
    """The options by operator; refuse an operator that is named twice."""
    names = [name for name, _ in pairs]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"{source}: {repeated[0]} is named twice; name each operator once")
    return dict(pairs)


def _from_text(priced_chain: PricedChain, name: str, text: str) -> tuple[str, list[Option]]:
    op = _find_operator(priced_chain.chain, name)
    try:
        levels = tuple(Factors(*map(int, level.split("."))) for level in text.split("/"))
    except (TypeError, ValueError) as error:
        fact = f"--layout {name}={text} is not rows.columns.contraction"
        raise UsageError(f"{fact}; write it as {_example(priced_chain)}") from error
    _check_product(priced_chain, f"--layout {name}={text}", levels)
    if len(levels) == 1:
        options = [option for option in priced_chain.options(op) if whole(option.split) == levels[0]]
    else:
        options = [option for option in priced_chain.options(op) if option.split == levels]
    return name, _require_fitting(op, text, options)


def _check_product(priced_chain: PricedChain, name: str, levels: tuple[Factors, ...]) -> None:
    """Refuse factors below 1, and those that do not come to the ranks, at each level where there are several."""
    if any(factor < 1 for f in levels for factor in f):
        raise UsageError(f"{name}: a factor is below 1 (the smallest: {min(map(min, levels))}); factors are 1 or more")
    ranks = priced_chain.levels if len(levels) > 1 else (priced_chain.ranks,)
    products = tuple(f.rows * f.columns * f.contraction for f in levels)
    if products != ranks:
        product, count = (" and ".join(map(str, numbers)) for numbers in (products, ranks))
        raise UsageError(f"{name}: the factors come to {product}, the ranks are {count}; their product must be that")


def _require_fitting(op: Operator, text: str, options: list[Option]) -> list[Option]:
    if not options:
        limits = f"sequences in a microbatch: {op.sequences}, heads: {op.heads}"
        raise UsageError(f"{op.name}={text} does not fit attention ({limits}); take fewer rows, or fewer columns")
    return options


def _example(priced_chain: PricedChain) -> str:
    """Factors of the first two operators that come to the ranks."""
    names = [op.name for op in priced_chain.chain.operators[:2]]
    ranks = priced_chain.ranks
    return ",".join(f"{name}={factors}" for name, factors in zip(names, (f"1.{ranks}.1", f"1.1.{ranks}"), strict=False))


def _find_operator(chain: Chain, name: str) -> Operator:
    for op in chain.operators:
        if op.name == name:
            return op
    raise UsageError(f"no layer is called {name!r}; known: {', '.join(op.name for op in chain.operators)}")


def _from_file(priced_chain: PricedChain, path: Path) -> dict[str, list[Option]]:
    try:
        rows = json.loads(path.read_text())["strategy"]
        if not rows:
            raise ValueError("its strategy is empty")
        return _index(f"--layout {path}", [_from_row(priced_chain, row) for row in rows])
    except (OSError, *MALFORMED) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"--layout {path} is no file that --out wrote ({error}); write it again") from error


def _from_row(priced_chain: PricedChain, row: Mapping[str, Any]) -> tuple[str, list[Option]]:
    op = _find_operator(priced_chain.chain, row["op"])
    factors = row["factors"]
    levels = tuple(Factors(*level) for level in (factors if isinstance(factors[0], list) else [factors]))
    _check_product(priced_chain, f"{op.name} of the file", levels)
    if row["state"] not in STATES:
        raise UsageError(f"{op.name} of the file: no state {row['state']!r}; known: {', '.join(STATES)}")
    fitting = [
        option for option in priced_chain.options(op) if option.split == levels or len(levels) < len(option.split)
    ]
    options = [option for option in fitting if whole(option.split) == whole(levels)]
    states = [Option(option.split, row["state"], bool(row.get("anew"))) for option in options]
    return op.name, _require_fitting(op, str(factors), states)
